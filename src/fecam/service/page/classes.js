// The list of classes: how many examples, since when, how small the summary is, and a way to forget.

import { byId, make } from "./dom.js";
import { many, size, when } from "./words.js";

// A colour a class, far from those taught just before it; it stays when others come.
export function huesOf(classes) {
  const inOrder = [...classes].sort((a, b) => (a.learned < b.learned ? -1 : a.learned > b.learned ? 1 : 0));
  return new Map(inOrder.map(({ label }, at) => [String(label), Math.round(190 + 137.5 * at) % 360]));
}

export function showClasses(classes, hues, forget) {
  byId("classes-none").hidden = classes.length > 0;
  byId("classes-hint").hidden = classes.length === 0;
  const held = document.activeElement.dataset.forget; // a list that is made anew must not lose the focus
  byId("classes").replaceChildren(...classes.map((one) => entry(one, hues, forget)));
  if (held !== undefined) byId("classes").querySelector(`[data-forget="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
  byId("labels").replaceChildren(...classes.map(({ label }) => make("option", { value: String(label) })));
}

function entry({ label, count, batches, learned, changed, note, bytes }, hues, forget) {
  const name = String(label);
  const dot = make("span", { class: "dot", "aria-hidden": "true" });
  dot.style.setProperty("--hue", hues.get(name));
  const times = when(changed) === when(learned) ? `taught ${when(learned)}` : `taught ${when(learned)}, last ${when(changed)}`;
  return make("li", {},
    dot,
    make("div", { class: "about" },
      make("strong", { dir: "auto" }, name),
      make("p", {}, `${many(count, "example")} in ${many(batches ?? 1, "batch", "batches")}, ${times}`),
      make("p", {}, `Its summary takes ${size(bytes)}.`),
      note ? make("p", { dir: "auto" }, note) : null),
    make("button", { type: "button", "data-forget": name, "aria-label": `Forget ${name}`, onclick: () => forget(name, count) }, "Forget"));
}

// Resolves to null (keep it) or {purge}.
export function confirmForget(label, count) {
  const dialog = byId("forget-dialog");
  byId("forget-label").textContent = label;
  byId("forget-said").textContent = `All it learnt from ${many(count, "example")} goes. An undo brings it back.`;
  byId("forget-good").checked = false;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () =>
      answer(dialog.returnValue === "forget" ? { purge: byId("forget-good").checked } : null), { once: true });
  });
}
