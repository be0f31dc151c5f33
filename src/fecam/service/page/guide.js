// The first minute: two classes, three examples each, and a question.

import { byId, make } from "./dom.js";

const TIMES = 3;
const SEEN = "fecam.guided";

const LESSONS = {
  images: [
    { label: "circle", say: ["Draw a circle and press Teach.", "Draw another circle, as different as you like.", "And one more circle."] },
    { label: "square", say: ["Now draw a square and press Teach.", "Another square.", "And a last one."] },
  ],
  texts: [
    { label: "praise", say: ["Write a kind sentence about a meal and press Teach.", "Another kind one.", "And one more."] },
    { label: "complaint", say: ["Now write a complaint about a meal and press Teach.", "Another complaint.", "And a last one."] },
  ],
  features: [
    { label: "first", say: ["Enter a row of numbers of one class and press Teach.", "Another row of it.", "And one more."] },
    { label: "second", say: ["Now a row of another class, and press Teach.", "Another row of it.", "And a last one."] },
  ],
};
const ASK = {
  images: "Now draw either of them, and press Ask what it is.",
  texts: "Now write another sentence, and press Ask what it is.",
  features: "Now enter another row, and press Ask what it is.",
};
const END = "That is all there is to it. If it was wrong, one click below the answer corrects it. Now teach it what you like.";

export class Guide {
  constructor(intake) {
    this.intake = intake;
    this.given = null; // how many examples so far; null while nobody is guided
    byId("guide-open").addEventListener("click", () => this.start(true));
    byId("guide-close").addEventListener("click", () => this.stop());
  }

  offer(classes) {
    if (classes === 0 && this.given === null && !sessionStorage.getItem(SEEN)) this.start(false);
  }

  get lessons() {
    return LESSONS[this.intake.kind];
  }

  start(asked) {
    this.given = 0;
    if (this.intake.kind === "images") this.intake.choose("draw");
    this.show();
    if (asked) byId("guide").scrollIntoView({ block: "start" });
  }

  stop() {
    this.given = null;
    sessionStorage.setItem(SEEN, "yes");
    byId("guide").hidden = true;
    byId("label").focus({ preventScroll: true });
  }

  taught(label, count) {
    if (this.given === null || this.given >= 2 * TIMES) return;
    const at = Math.floor(this.given / TIMES);
    if (label !== this.lessons[at].label) return;
    this.given = Math.min(this.given + count, TIMES * (at + 1));
    this.show();
  }

  asked() {
    if (this.given !== 2 * TIMES) return;
    this.given += 1;
    sessionStorage.setItem(SEEN, "yes");
    this.show();
  }

  show() {
    const all = 2 * TIMES;
    const lesson = this.lessons[Math.floor(this.given / TIMES)];
    byId("guide").hidden = false;
    if (this.given < all) {
      byId("label").value = lesson.label;
      byId("guide-step").textContent = lesson.say[this.given % TIMES];
    } else byId("guide-step").textContent = this.given === all ? ASK[this.intake.kind] : END;
    byId("guide-close").textContent = this.given > all ? "Done" : "Skip this";
    const dot = (at) => make("li", { class: at < this.given ? "full" : null });
    byId("guide-dots").replaceChildren(...[0, 1, 2].map(dot), make("li", { class: "gap" }),
      ...[3, 4, 5].map(dot), make("li", { class: "gap" }), dot(6));
  }
}
