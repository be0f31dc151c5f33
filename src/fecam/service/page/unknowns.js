// A tray of examples that fit no class. Groups of them become classes: one click teaches a group.

import { byId, element } from "./dom.js";
import { plural } from "./format.js";

const MAX_ITEMS = 200;
const MAX_PICTURES = 12; // of a group

export class Unknowns {
  // `discover(examples)` shows groups, `teach(examples, label)` resolves to the number of the step or
  // null, `classNames()` are names that a new class does not get.
  constructor({ discover, teach, classNames }) {
    Object.assign(this, { discover, teach, classNames });
    this.items = []; // {example, step}: the step that taught it, or null
    this.groups = null;
    this.steps = [];
    byId("unknowns-group").addEventListener("click", () => this.discover(this.open.map(({ example }) => example)));
    byId("unknowns-clear").addEventListener("click", () => {
      this.items = [];
      this.groups = null;
      this.show();
    });
  }

  // Those that are not taught; an undo brings them back.
  get open() {
    const undone = new Set(this.steps.filter((step) => step.undone).map(({ number }) => number));
    return this.items.filter(({ step }) => step === null || undone.has(step));
  }

  add(examples) {
    this.items = [...this.items, ...examples.map((example) => ({ example, step: null }))].slice(-MAX_ITEMS);
    this.groups = null;
    this.show();
  }

  update(steps) {
    const before = this.open.length;
    this.steps = steps;
    if (this.open.length !== before && this.open.length) this.show();
  }

  // `groups` of the service: positions among `examples`, the most typical first.
  showGroups(examples, { groups, single }) {
    const items = examples.map((example) => this.items.find((item) => item.example === example));
    const taken = new Set(this.classNames());
    const free = (i) => (taken.has(`new class ${i}`) ? free(i + 1) : `new class ${i}`);
    this.groups = groups.map(({ items: positions, nearest }) => {
      const name = free(1);
      taken.add(name);
      return { items: positions.map((i) => items[i]), nearest, name };
    });
    this.nSingle = single.length;
    this.show();
  }

  show() {
    const { open } = this;
    byId("unknowns-card").hidden = this.items.length === 0;
    byId("unknowns-count").textContent = `(${open.length})`;
    byId("unknowns-group").disabled = open.length < 2;
    byId("unknowns").replaceChildren(...open.map(({ example }) => element("li", {}, preview(example))));
    byId("unknowns").hidden = this.groups !== null;
    byId("groups").replaceChildren(...(this.groups ?? []).map((group, i) => this.row(group, `group-${i + 1}`)));
    byId("unknowns-note").textContent = this.groups === null ? "" : this.note();
  }

  note() {
    if (this.groups.length === 0) return "No two of them are alike enough to be a class. Collect more.";
    return this.nSingle ? `${plural(this.nSingle, "other example")} ${this.nSingle === 1 ? "is" : "are"} like no other.` : "";
  }

  row(group, id) {
    const field = element("input", {
      id,
      value: group.name,
      list: "labels",
      dir: "auto",
      maxlength: 200,
      required: true,
      autocapitalize: "none",
      oninput: () => { group.name = field.value; }, // the row may be shown again
    });
    return element("li", {},
      element("div", { class: "thumbs" }, ...group.items.slice(0, MAX_PICTURES).map((item) => this.member(item, group))),
      element("p", { class: "quiet small", dir: "auto" }, `${plural(group.items.length, "example")}, most similar to ${group.nearest}`),
      element("form", { class: "naming", autocomplete: "off", onsubmit: (event) => this.name(event, group) },
        element("label", { for: id, class: "hidden" }, `Name of the group near ${group.nearest}`), field,
        element("button", { class: "main" }, "Teach")));
  }

  // A click takes an example out of its group.
  member(item, group) {
    const leave = () => {
      group.items = group.items.filter((other) => other !== item);
      this.groups = this.groups.filter(({ items }) => items.length);
      this.nSingle += 1;
      if (this.groups.length === 0) this.groups = null;
      this.show();
    };
    return element("button", { type: "button", title: "Take it out of the group", "aria-label": `Take ${item.example.name} out of the group`, onclick: leave },
      preview(item.example));
  }

  async name(event, group) {
    event.preventDefault();
    const label = group.name.trim();
    if (!label) return;
    const button = event.target.querySelector("button");
    button.disabled = true;
    const step = await this.teach(group.items.map(({ example }) => example), label);
    if (step === null) {
      button.disabled = false;
      return;
    }
    for (const item of group.items) item.step = step;
    this.groups = this.groups?.filter((other) => other !== group) ?? null;
    if (this.groups?.length === 0) this.groups = null;
    this.show();
  }
}

const preview = ({ picture, name }) => (picture === null
  ? element("span", { class: "quote", dir: "auto" }, name)
  : element("img", { src: picture, alt: name }));
