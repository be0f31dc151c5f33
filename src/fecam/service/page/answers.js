// What the model says about examples, and the one click that corrects it.

import { byId, make } from "./dom.js";
import { fit, percent } from "./words.js";

const MOST = 12; // cards on the page
const SHOWN = 3; // classes with a bar
const OTHERS = 4; // classes to correct to with one click

let number = 0;

// `correct(example, label)` teaches, and says whether it went well.
export function showAnswers(examples, answers, known, correct) {
  const list = byId("answers");
  byId("answers-card").hidden = false;
  list.prepend(...examples.map((example, at) => card(example, answers[at], known, correct)));
  while (list.children.length > MOST) list.lastElementChild.remove();
  byId("answers-said").textContent = answers.map((answer) => said(answer)).join(" ");
}

export const said = (answer) => {
  if (answer.error) return `It cannot be read: ${answer.error}`;
  if (answer.label === null) return "None of these.";
  return `${answer.label}, ${percent(answer.nearest[0].probability)}.`;
};

function shown({ picture, name }) {
  return picture === null
    ? make("div", { class: "quote", dir: "auto" }, name)
    : make("img", { class: "shown", src: picture, alt: name });
}

function card(example, answer, known, correct) {
  if (answer.error) {
    return make("li", {}, shown(example), make("div", {}, make("h3", {}, "Not readable"), make("p", {}, answer.error)));
  }
  const nearest = answer.nearest.map((one) => ({ ...one, label: String(one.label) }));
  const rejected = answer.label === null;
  return make("li", { class: rejected ? "unsure" : "sure" },
    shown(example),
    make("div", {},
      make("h3", { dir: "auto" }, rejected ? "None of these" : String(answer.label)),
      make("p", { class: "fit quiet small" }, fit(answer.novelty) + (rejected ? " The nearest are:" : "")),
      make("ul", { class: "bars" }, ...nearest.slice(0, SHOWN).map(bar))),
    fixes(example, rejected ? null : String(answer.label), nearest, known, correct));
}

function bar({ label, probability }) {
  const inside = make("i");
  inside.style.width = `${100 * probability}%`;
  return make("li", {},
    make("span", { class: "name", dir: "auto", title: label }, label),
    make("span", { class: "bar", "aria-hidden": "true" }, inside),
    make("span", { class: "share" }, percent(probability)));
}

function fixes(example, label, nearest, known, correct) {
  const box = make("div", { class: "fix" });
  const choose = async (chosen) => {
    const buttons = [...box.querySelectorAll("button")];
    buttons.forEach((button) => { button.disabled = true; });
    if (await correct(example, chosen)) {
      box.replaceChildren(make("p", { tabindex: "-1" }, `Taught as ${chosen}.`));
      box.firstElementChild.focus({ preventScroll: true });
    } else buttons.forEach((button) => { button.disabled = false; });
  };
  const others = [...new Set([...nearest.map((one) => one.label), ...known])].filter((one) => one !== label);
  const button = (text, chosen, about) =>
    make("button", { type: "button", "aria-label": about, onclick: () => choose(chosen) }, text);
  box.append(
    make("p", {}, label === null ? "It is …" : "No, it is …"),
    make("div", { class: "row" },
      ...others.slice(0, OTHERS).map((one) => button(one, one, `${label === null ? "It" : "No, it"} is ${one}`)),
      make("button", { type: "button", "aria-expanded": "false", onclick: (event) => another(event.target, box, choose) }, "something else"),
      label === null ? null : button("Yes, learn it", label, `Yes, learn it as ${label}`)));
  return box;
}

function another(opener, box, choose) {
  if (box.querySelector("form")) return;
  opener.setAttribute("aria-expanded", "true");
  number += 1;
  const field = make("input", { id: `is-${number}`, list: "labels", dir: "auto", maxlength: 200, required: true, autocapitalize: "none" });
  box.append(make("form", {
    autocomplete: "off",
    onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim()) choose(field.value.trim());
    },
  }, make("label", { for: field.id }, "It is a"), field, make("button", { class: "main" }, "Teach that")));
  field.focus();
}
