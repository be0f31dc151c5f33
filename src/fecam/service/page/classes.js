// The list of classes, with a button to forget each.

import { byId, element } from "./dom.js";
import { plural, size, when } from "./format.js";

// Hues by the golden angle, in the order of learning: neighbors differ, and a class keeps its hue.
export function huesOf(classes) {
  const inOrder = [...classes].sort((a, b) => (a.learned < b.learned ? -1 : a.learned > b.learned ? 1 : 0));
  return new Map(inOrder.map(({ label }, i) => [String(label), Math.round(190 + 137.5 * i) % 360]));
}

const MAX_THUMBNAILS = 8;

// `pictures`: per label those of this visit, the latest first.
export function showClasses(classes, hues, pictures, forget) {
  byId("classes-none").hidden = classes.length > 0;
  byId("classes-hint").hidden = classes.length === 0;
  const focused = document.activeElement.dataset.forget; // restored after the list is replaced
  byId("classes").replaceChildren(...classes.map((record) => entry(record, hues, pictures, forget)));
  if (focused !== undefined) byId("classes").querySelector(`[data-forget="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("labels").replaceChildren(...classes.map(({ label }) => element("option", { value: String(label) })));
}

function entry({ label, count, batches, learned, changed, note, bytes }, hues, pictures, forget) {
  const name = String(label);
  const dot = element("span", { class: "dot", "aria-hidden": "true" });
  dot.style.setProperty("--hue", hues.get(name));
  const times = when(changed) === when(learned) ? `Learned ${when(learned)}` : `Learned ${when(learned)}, changed ${when(changed)}`;
  return element("li", {},
    dot,
    element("div", { class: "about" },
      element("div", { class: "name" }, element("strong", { dir: "auto", title: name }, name), thumbnails(name, pictures.get(name) ?? [])),
      element("p", { title: `${times}, in ${plural(batches ?? 1, "batch", "batches")}. Its statistics take ${size(bytes)}.` },
        `${plural(count, "example")}, ${when(changed)}, ${size(bytes)}`),
      note ? element("p", { dir: "auto" }, note) : null),
    element("button", { type: "button", "data-forget": name, "aria-label": `Forget ${name}`, onclick: () => forget(name, count) }, "Forget"));
}

function thumbnails(label, pictures) {
  if (pictures.length === 0) return null;
  return element("div", { class: "thumbs", role: "img", "aria-label": `${plural(pictures.length, "picture")} of ${label} from this visit` },
    ...pictures.slice(0, MAX_THUMBNAILS).map((src) => element("img", { src, alt: "" })));
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
