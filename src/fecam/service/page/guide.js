// A guide for the first visit: two classes, three examples each, and a prediction.

import { byId, element } from "./dom.js";

const EXAMPLES_PER_CLASS = 3;
const N_EXAMPLES = 2 * EXAMPLES_PER_CLASS;
const SEEN = "fecam.guided";

const CLASSES = {
  images: [
    { label: "circle", prompts: ["Draw a circle and press Teach.", "Draw another circle.", "Draw a third circle."] },
    { label: "square", prompts: ["Now draw a square and press Teach.", "Draw another square.", "Draw a third square."] },
  ],
  texts: [
    { label: "praise", prompts: ["Write a positive sentence about a meal and press Teach.", "Write another one.", "Write a third one."] },
    { label: "complaint", prompts: ["Now write a complaint about a meal and press Teach.", "Write another one.", "Write a third one."] },
  ],
  features: [
    { label: "first", prompts: ["Enter a row of numbers of one class and press Teach.", "Enter another row.", "Enter a third row."] },
    { label: "second", prompts: ["Now enter a row of another class and press Teach.", "Enter another row.", "Enter a third row."] },
  ],
};
const PREDICT = {
  images: "Now draw a circle or a square: the answer comes while you draw.",
  texts: "Now write another sentence: the answer comes while you type.",
  features: "Now enter another row: the answer comes at once.",
};
const END = "Done. If an answer is wrong, press the right name. Now teach your own classes.";

export class Guide {
  constructor(input) {
    this.input = input;
    this.count = null; // examples taught so far; null while the guide is closed
    byId("guide-open").addEventListener("click", () => this.start(true));
    byId("guide-close").addEventListener("click", () => this.stop());
  }

  offer(nClasses) {
    if (nClasses === 0 && this.count === null && !sessionStorage.getItem(SEEN)) this.start(false);
  }

  get classes() {
    return CLASSES[this.input.kind];
  }

  start(byUser) {
    this.count = 0;
    if (this.input.kind === "images") this.input.choose("draw");
    this.show();
    if (byUser) byId("tab-teach").click();
  }

  stop() {
    this.count = null;
    sessionStorage.setItem(SEEN, "yes");
    byId("guide").hidden = true;
    byId("label").focus({ preventScroll: true });
  }

  // The next prompt appears at once; the returned function takes it back if the lesson failed.
  onTaught(label, count) {
    if (this.count === null || this.count >= N_EXAMPLES) return () => {};
    const index = Math.floor(this.count / EXAMPLES_PER_CLASS);
    if (label !== this.classes[index].label) return () => {};
    const added = Math.min(count, EXAMPLES_PER_CLASS * (index + 1) - this.count);
    this.count += added;
    this.show();
    return () => {
      if (this.count === null) return;
      this.count -= added;
      this.show();
    };
  }

  onPredicted() {
    if (this.count !== N_EXAMPLES) return;
    this.count += 1;
    sessionStorage.setItem(SEEN, "yes");
    this.show();
  }

  show() {
    byId("guide").hidden = false;
    if (this.count < N_EXAMPLES) {
      const { label, prompts } = this.classes[Math.floor(this.count / EXAMPLES_PER_CLASS)];
      byId("label").value = label;
      byId("guide-step").textContent = prompts[this.count % EXAMPLES_PER_CLASS];
    } else byId("guide-step").textContent = this.count === N_EXAMPLES ? PREDICT[this.input.kind] : END;
    byId("guide-close").textContent = this.count > N_EXAMPLES ? "Close" : "Skip";
    const dot = (i) => element("li", { class: i < this.count ? "full" : null });
    byId("guide-dots").replaceChildren(...[0, 1, 2].map(dot), element("li", { class: "gap" }),
      ...[3, 4, 5].map(dot), element("li", { class: "gap" }), dot(6));
  }
}
