// The list of classes, with a button to forget each.

import { byId, element } from "./dom.js";
import { plural, size, when } from "./format.js";

// Hues by the golden angle, in the order of learning: neighbors differ, and a class keeps its hue.
export function huesOf(classes) {
  const inOrder = [...classes].sort((a, b) => (a.learned < b.learned ? -1 : a.learned > b.learned ? 1 : 0));
  return new Map(inOrder.map(({ label }, i) => [String(label), Math.round(190 + 137.5 * i) % 360]));
}

export function showClasses(classes, hues, forget) {
  byId("classes-none").hidden = classes.length > 0;
  byId("classes-hint").hidden = classes.length === 0;
  const focused = document.activeElement.dataset.forget; // restored after the list is replaced
  byId("classes").replaceChildren(...classes.map((record) => entry(record, hues, forget)));
  if (focused !== undefined) byId("classes").querySelector(`[data-forget="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("labels").replaceChildren(...classes.map(({ label }) => element("option", { value: String(label) })));
}

function entry({ label, count, batches, learned, changed, note, bytes }, hues, forget) {
  const name = String(label);
  const dot = element("span", { class: "dot", "aria-hidden": "true" });
  dot.style.setProperty("--hue", hues.get(name));
  const times = when(changed) === when(learned) ? `learned ${when(learned)}` : `learned ${when(learned)}, changed ${when(changed)}`;
  return element("li", {},
    dot,
    element("div", { class: "about" },
      element("strong", { dir: "auto" }, name),
      element("p", {}, `${plural(count, "example")} in ${plural(batches ?? 1, "batch", "batches")}, ${times}`),
      element("p", {}, `Its statistics take ${size(bytes)}.`),
      note ? element("p", { dir: "auto" }, note) : null),
    element("button", { type: "button", "data-forget": name, "aria-label": `Forget ${name}`, onclick: () => forget(name, count) }, "Forget"));
}

// Resolves to null (cancel) or {purge}.
export function confirmForget(label, count) {
  const dialog = byId("forget-dialog");
  byId("forget-label").textContent = label;
  byId("forget-message").textContent = `This removes what was learned from ${plural(count, "example")}. It can be undone.`;
  byId("forget-purge").checked = false;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () =>
      resolve(dialog.returnValue === "forget" ? { purge: byId("forget-purge").checked } : null), { once: true });
  });
}
