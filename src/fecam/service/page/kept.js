// What is kept back to measure with: in this browser tab only, until it is closed.

import { keepable } from "./examples.js";

const EVERY = 5;
const MOST = 200;

export class Kept {
  constructor(store = sessionStorage) {
    this.store = store;
    this.open("");
  }

  // Each model has its own.
  open(name) {
    this.name = name;
    let found = null;
    try {
      found = JSON.parse(this.store.getItem(this.place));
    } catch { /* as if there were none */ }
    this.given = found?.given ?? 0;
    this.items = found?.items ?? [];
    this.points = found?.points ?? [];
  }

  get place() {
    return `fecam.kept.${this.name}`;
  }

  save() {
    while (true) {
      try {
        this.store.setItem(this.place, JSON.stringify({ given: this.given, items: this.items, points: this.points }));
        return;
      } catch { // the store is full: the oldest go first
        if (this.items.length === 0) return;
        this.items.splice(0, Math.ceil(this.items.length / 10));
      }
    }
  }

  clear() {
    Object.assign(this, { given: 0, items: [], points: [] });
    this.store.removeItem(this.place);
  }

  // Which of some examples are taught and which are kept back: every fifth, but never the first of a class.
  split(examples, known) {
    const taught = [];
    const held = [];
    let given = this.given;
    for (const example of examples) {
      given += 1;
      if (given < EVERY || !(known || taught.length)) taught.push(example);
      else {
        held.push(example);
        given = 0;
      }
    }
    return { taught, held, given };
  }

  async take(held, label, given) {
    this.given = given;
    for (const example of held) {
      const payload = await keepable(example);
      if (payload !== null) this.items.push({ kind: example.kind, payload, label });
    }
    this.items = this.items.slice(-MOST);
    this.save();
  }

  add(point) {
    if (this.points.at(-1)?.version > point.version) this.points = []; // another file by the same name
    if (this.points.at(-1)?.version === point.version) this.points.pop();
    this.points = [...this.points, point].slice(-MOST);
    this.save();
  }
}
