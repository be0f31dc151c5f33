// Examples that are held out to measure accuracy. They stay in this browser tab until it is closed.

import { toStorable } from "./examples.js";

const EVERY = 5;
const MIN_LEARNED = 2; // per held-out example of a class
const MAX_ITEMS = 200;

export class Holdout {
  constructor(store = sessionStorage) {
    this.store = store;
    this.open("");
  }

  // Each model has its own held-out examples.
  open(name) {
    this.name = name;
    let stored = null;
    try {
      stored = JSON.parse(this.store.getItem(this.storageKey));
    } catch { /* start empty */ }
    this.counter = stored?.counter ?? 0;
    this.items = stored?.items ?? [];
    this.points = stored?.points ?? [];
  }

  get storageKey() {
    return `fecam.holdout.${this.name}`;
  }

  save() {
    while (true) {
      try {
        this.store.setItem(this.storageKey, JSON.stringify({ counter: this.counter, items: this.items, points: this.points }));
        return;
      } catch { // the storage is full: remove the oldest
        if (this.items.length === 0) return;
        this.items.splice(0, Math.ceil(this.items.length / 10));
      }
    }
  }

  clear() {
    Object.assign(this, { counter: 0, items: [], points: [] });
    this.store.removeItem(this.storageKey);
  }

  // Every fifth example is held out; a class with `known` examples keeps two for each of them.
  split(examples, label, known) {
    const nHeldOut = this.items.filter((item) => item.label === label).length;
    const learn = [];
    const heldOut = [];
    let counter = this.counter;
    for (const example of examples) {
      counter += 1;
      const enough = known + learn.length >= MIN_LEARNED * (nHeldOut + heldOut.length + 1);
      if (counter < EVERY || !enough) learn.push(example);
      else {
        heldOut.push(example);
        counter = 0;
      }
    }
    return { learn, heldOut, counter };
  }

  async add(examples, label, counter) {
    this.counter = counter;
    for (const example of examples) {
      const payload = await toStorable(example);
      if (payload !== null) this.items.push({ kind: example.kind, payload, label });
    }
    this.items = this.items.slice(-MAX_ITEMS);
    this.save();
  }

  addPoint(point) {
    if (this.points.at(-1)?.version > point.version) this.points = []; // another file with the same name
    if (this.points.at(-1)?.version === point.version) this.points.pop();
    this.points = [...this.points, point].slice(-MAX_ITEMS);
    this.save();
  }
}
