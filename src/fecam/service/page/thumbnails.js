// Small pictures of the examples that were taught in this tab. The server keeps no pictures.

import { downscaled } from "./examples.js";

const SIDE = 64; // px
const MAX_ITEMS = 150;

export class Thumbnails {
  constructor(store = sessionStorage) {
    this.store = store;
    this.open("");
  }

  // Each model has its own.
  open(name) {
    this.key = `fecam.thumbnails.${name}`;
    try {
      this.items = JSON.parse(this.store.getItem(this.key)) ?? [];
    } catch {
      this.items = [];
    }
  }

  // `number` is the step of the history that learned the examples.
  async add(examples, label, number) {
    for (const example of examples.filter(({ kind }) => kind === "images")) {
      const picture = await downscaled(example, SIDE);
      if (picture !== null) this.items.push({ number, label, picture });
    }
    this.items = this.items.slice(-MAX_ITEMS);
    this.save();
  }

  save() {
    try {
      this.store.setItem(this.key, JSON.stringify(this.items));
    } catch { /* the storage is full: they last until a reload */ }
  }

  // The pictures per class, the latest first, without those that were undone or forgotten.
  byClass(steps) {
    const undone = new Set(steps.filter((step) => step.undone).map(({ number }) => number));
    const forgotten = new Map();
    for (const { what, counts, number } of steps.filter((step) => step.what === "forget" && !step.undone)) {
      for (const label of Object.keys(counts)) forgotten.set(label, Math.max(number, forgotten.get(label) ?? 0));
    }
    const pictures = new Map();
    for (const { number, label, picture } of [...this.items].reverse()) {
      if (undone.has(number) || number < (forgotten.get(label) ?? 0)) continue;
      pictures.set(label, [...pictures.get(label) ?? [], picture]);
    }
    return pictures;
  }

  drop(label) {
    this.items = this.items.filter((item) => item.label !== label);
    this.save();
  }
}
