// What happened, and what an undo would take back.

import { byId, make } from "./dom.js";
import { step, when } from "./words.js";

const MOST = 50;

export const nextToUndo = (steps) => steps.find(({ undone }) => !undone) ?? null;

export function showHistory(steps) {
  byId("history-card").hidden = steps.length === 0;
  const next = nextToUndo(steps);
  const can = next !== null && next.can_undo;
  byId("undo").disabled = !can;
  byId("undo").textContent = can ? `Undo: ${step(next)}` : "Nothing to undo";
  byId("history").replaceChildren(...steps.slice(0, MOST).map((one) => make("li", { value: one.number },
    make("span", { class: one.undone ? "undone" : null, dir: "auto" }, step(one)),
    make("p", {}, [when(one.time), one.undone ? "undone" : "", one.note].filter(Boolean).join(", ")))));
}
