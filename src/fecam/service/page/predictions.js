// Predictions, with buttons to correct them.

import { byId, element } from "./dom.js";
import { fit, percent } from "./format.js";

const MAX_CARDS = 12;
const MAX_BARS = 3; // classes with a bar
const MAX_CORRECTIONS = 4; // classes with a button

let nextId = 0;

// `correct(example, label)` teaches the label and resolves to whether that succeeded.
export function showPredictions(examples, answers, classNames, correct) {
  const list = byId("predictions");
  byId("predictions-card").hidden = false;
  list.prepend(...examples.map((example, i) => card(example, answers[i], classNames, correct)));
  while (list.children.length > MAX_CARDS) list.lastElementChild.remove();
  byId("predictions-status").textContent = answers.map((answer) => describe(answer)).join(" ");
}

export const describe = (answer) => {
  if (answer.error) return `Not readable: ${answer.error}`;
  if (answer.label === null) return "None of these.";
  return `${answer.label}, ${percent(answer.nearest[0].probability)}.`;
};

function preview({ picture, name }) {
  return picture === null
    ? element("div", { class: "quote", dir: "auto" }, name)
    : element("img", { class: "shown", src: picture, alt: name });
}

function card(example, answer, classNames, correct) {
  if (answer.error) {
    return element("li", {}, preview(example), element("div", {}, element("h3", {}, "Not readable"), element("p", {}, answer.error)));
  }
  const nearest = answer.nearest.map((candidate) => ({ ...candidate, label: String(candidate.label) }));
  const rejected = answer.label === null;
  return element("li", { class: rejected ? "unsure" : "sure" },
    preview(example),
    element("div", {},
      element("h3", { dir: "auto" }, rejected ? "None of these" : String(answer.label)),
      element("p", { class: "fit quiet small" }, fit(answer.novelty, rejected)),
      element("ul", { class: "bars" }, ...nearest.slice(0, MAX_BARS).map(rejected ? name : bar))),
    corrections(example, rejected ? null : String(answer.label), nearest, classNames, correct));
}

// A rejected example has no percentages: they sum to 100 % over the known classes.
const name = ({ label }) => element("li", {}, element("span", { class: "name", dir: "auto", title: label }, label));

function bar({ label, probability }) {
  const inside = element("i");
  inside.style.width = `${100 * probability}%`;
  return element("li", {},
    element("span", { class: "name", dir: "auto", title: label }, label),
    element("span", { class: "bar", "aria-hidden": "true" }, inside),
    element("span", { class: "share" }, percent(probability)));
}

function corrections(example, label, nearest, classNames, correct) {
  const box = element("div", { class: "fix" });
  const choose = async (chosen) => {
    const buttons = [...box.querySelectorAll("button")];
    buttons.forEach((button) => { button.disabled = true; });
    if (await correct(example, chosen)) {
      box.replaceChildren(element("p", { tabindex: "-1" }, `Learned as ${chosen}.`));
      box.firstElementChild.focus({ preventScroll: true });
    } else buttons.forEach((button) => { button.disabled = false; });
  };
  const others = [...new Set([...nearest.map((candidate) => candidate.label), ...classNames])].filter((name) => name !== label);
  const button = (text, chosen, description) =>
    element("button", { type: "button", "aria-label": description, onclick: () => choose(chosen) }, text);
  box.append(
    element("p", {}, label === null ? "It is …" : "No, it is …"),
    element("div", { class: "row" },
      ...others.slice(0, MAX_CORRECTIONS).map((name) => button(name, name, `${label === null ? "It" : "No, it"} is ${name}`)),
      element("button", { type: "button", "aria-expanded": "false", onclick: (event) => openForm(event.target, box, choose) }, "Other class"),
      label === null ? null : button("Yes, learn it", label, `Yes, learn it as ${label}`)));
  return box;
}

function openForm(opener, box, choose) {
  if (box.querySelector("form")) return;
  opener.setAttribute("aria-expanded", "true");
  nextId += 1;
  const field = element("input", { id: `correction-${nextId}`, list: "labels", dir: "auto", maxlength: 200, required: true, autocapitalize: "none" });
  box.append(element("form", {
    autocomplete: "off",
    onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim()) choose(field.value.trim());
    },
  }, element("label", { for: field.id }, "Class"), field, element("button", { class: "main" }, "Teach")));
  field.focus();
}
