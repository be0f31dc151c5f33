// Predictions, with buttons to correct them.

import { byId, element } from "./dom.js";
import { fit, hasPercentages, percentages } from "./format.js";

const MAX_CARDS = 12;
const MAX_BARS = 3; // classes with a bar
const MAX_CORRECTIONS = 4; // classes with a button

let nextId = 0;

// `correct(example, label)` teaches the label and resolves to whether that succeeded; `why(example,
// rejected)` explains the answer.
export function showPredictions(examples, answers, classNames, { correct, why }) {
  const list = byId("predictions");
  byId("predictions-card").hidden = false;
  list.prepend(...examples.map((example, i) => card(example, answers[i], classNames, correct, why)));
  while (list.children.length > MAX_CARDS) list.lastElementChild.remove();
  byId("predictions-status").textContent = answers.map((answer) => describe(answer)).join(" ");
}

export const describe = (answer) => {
  if (answer.error) return `Not readable: ${answer.error}`;
  if (answer.label === null) return "None of these.";
  if (!hasPercentages(answer)) return `${answer.label}. ${fit(answer).split(".")[0]}.`;
  return `${answer.label}, ${percentages([answer.nearest[0].probability])[0]}.`;
};

function preview({ picture, name }) {
  return picture === null
    ? element("div", { class: "quote", dir: "auto" }, name)
    : element("img", { class: "shown", src: picture, alt: name });
}

// The label, how well it fits, and the nearest classes.
export function answerParts(answer) {
  if (answer.error) return [element("h3", {}, "Not readable"), element("p", {}, answer.error)];
  const nearest = answer.nearest.slice(0, MAX_BARS);
  const rows = hasPercentages(answer) ? bars(nearest) : nearest.map(name);
  return [
    element("h3", { dir: "auto" }, answer.label === null ? "None of these" : String(answer.label)),
    element("p", { class: "fit quiet small" }, fit(answer)),
    element("ul", { class: "bars" }, ...rows),
  ];
}

export const answerClass = (answer) => (answer.error || hasPercentages(answer) ? "sure" : "unsure");

function card(example, answer, classNames, correct, why) {
  const parts = element("div", {}, ...answerParts(answer));
  if (answer.error) return element("li", {}, preview(example), parts);
  const nearest = answer.nearest.map(({ label }) => String(label));
  parts.append(element("button", { type: "button", class: "plain", onclick: () => why(example, label === null) }, "Why?"));
  const label = answer.label === null ? null : String(answer.label);
  return element("li", { class: answerClass(answer) }, preview(example), parts, corrections(example, label, nearest, classNames, correct));
}

const name = ({ label }) => element("li", {}, element("span", { class: "name", dir: "auto", title: String(label) }, String(label)));

function bars(nearest) {
  const shares = percentages(nearest.map(({ probability }) => probability));
  const rows = nearest.map(({ label, probability }, i) => bar(String(label), probability, shares[i]));
  if (shares.at(-1) === "0 %") return rows;
  const rest = 1 - nearest.reduce((sum, { probability }) => sum + probability, 0);
  return [...rows, bar("other classes", rest, shares.at(-1), "others")];
}

function bar(label, probability, share, kind = null) {
  const inside = element("i");
  inside.style.width = `${100 * probability}%`;
  return element("li", { class: kind },
    element("span", { class: "name", dir: "auto", title: label }, label),
    element("span", { class: "bar", "aria-hidden": "true" }, inside),
    element("span", { class: "share" }, share));
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
  const others = [...new Set([...nearest, ...classNames])].filter((name) => name !== label);
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
