// The history, and the step that an undo reverts.

import { byId, element } from "./dom.js";
import { step as describe, when } from "./format.js";

const MAX_STEPS = 50;

export const nextToUndo = (steps) => steps.find(({ undone }) => !undone) ?? null;

export function showHistory(steps) {
  byId("history-card").hidden = steps.length === 0;
  const next = nextToUndo(steps);
  const canUndo = next !== null && next.can_undo;
  byId("undo").disabled = !canUndo;
  byId("undo").textContent = canUndo ? `Undo: ${describe(next)}` : "Nothing to undo";
  byId("history").replaceChildren(...steps.slice(0, MAX_STEPS).map((step) => element("li", { value: step.number },
    element("span", { class: step.undone ? "undone" : null, dir: "auto" }, describe(step)),
    element("p", {}, [when(step.time), step.undone ? "undone" : "", step.note].filter(Boolean).join(", ")))));
}
