// Where examples come from: the sheet, files, the clipboard, the camera, typed lines.

import { Camera } from "./camera.js";
import { byId, make } from "./dom.js";
import { fromFile, image, rows, texts } from "./examples.js";
import { Sketch } from "./sketch.js";

const KINDS = { draw: "images", pictures: "images", camera: "images", texts: "texts", features: "features" };

export class Intake {
  constructor(complain) {
    this.complain = complain;
    this.tray = [];
    this.drawn = 0;
    this.camera = new Camera(byId("video"));
    this.sketch = new Sketch(byId("sketch"), () => this.showSketch());
    this.wireWays();
    this.wireSketch();
    this.wireFiles();
    this.wireCamera();
  }

  // ------------------------------------------------------------------ what is given

  get way() {
    return document.querySelector("input[name=way]:checked").value;
  }

  get kind() {
    return KINDS[this.way];
  }

  // All that is there now: the tray, and what is still on the sheet or typed.
  examples() {
    if (this.kind === "texts") return texts(byId("texts").value);
    if (this.kind === "features") return rows(byId("rows").value);
    const drawing = this.way === "draw" && !this.sketch.empty ? [this.drawing()] : [];
    return [...this.tray, ...drawing];
  }

  // The same, and room for the next: `back` brings it all back, should something go wrong.
  take() {
    const examples = this.examples();
    const field = { texts: byId("texts"), features: byId("rows") }[this.kind];
    if (field) {
      const { value } = field;
      field.value = "";
      return { examples, back: () => { field.value = [value, field.value].filter(Boolean).join("\n"); } };
    }
    const { tray } = this;
    const strokes = this.way === "draw" ? this.sketch.take() : [];
    this.tray = [];
    this.showTray();
    return {
      examples,
      back: () => {
        this.tray = [...tray, ...this.tray];
        this.showTray();
        this.sketch.giveBack(strokes);
      },
    };
  }

  // A model that was taught something takes only that kind of thing.
  allow(kind) {
    for (const label of byId("ways").querySelectorAll("label")) {
      label.hidden = kind !== null && label.dataset.kind !== kind;
      label.firstElementChild.disabled = label.hidden;
    }
    if (kind !== null && this.kind !== kind) this.choose(byId("ways").querySelector("label:not([hidden]) input").value);
  }

  choose(way) {
    document.querySelector(`input[name=way][value=${way}]`).checked = true;
    this.showWay();
  }

  // ------------------------------------------------------------------ ways

  wireWays() {
    byId("ways").addEventListener("change", () => this.showWay());
    this.showWay(); // a reloaded page remembers the choice
  }

  showWay() {
    for (const way of Object.keys(KINDS)) byId(`way-${way}`).hidden = way !== this.way;
    if (this.way !== "camera" && this.camera.on) this.stopCamera();
    byId("tray").hidden = this.kind !== "images";
    this.complain("");
  }

  add(...examples) {
    this.tray.push(...examples);
    this.showTray();
  }

  showTray() {
    byId("tray").replaceChildren(...this.tray.map((example) => make("li", {},
      make("img", { src: example.picture, alt: example.name }),
      make("button", {
        type: "button",
        "aria-label": `Take ${example.name} out`,
        onclick: () => {
          this.tray = this.tray.filter((other) => other !== example);
          this.showTray();
          byId("tray").querySelector("button")?.focus();
        },
      }, "×"))));
  }

  // ------------------------------------------------------------------ the sheet

  drawing() {
    this.drawn += 1;
    return image(this.sketch.picture(), "image/png", `drawing ${this.drawn}`);
  }

  wireSketch() {
    byId("stroke-undo").addEventListener("click", () => this.sketch.undo());
    byId("sketch-clear").addEventListener("click", () => this.sketch.clear());
    byId("sketch-add").addEventListener("click", () => {
      this.add(this.drawing());
      this.sketch.clear();
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input:not([type=radio]), textarea, dialog");
      if (typing || !(event.ctrlKey || event.metaKey) || event.key !== "z" || this.way !== "draw") return;
      event.preventDefault();
      this.sketch.undo();
    });
  }

  showSketch() {
    const { empty } = this.sketch;
    for (const id of ["stroke-undo", "sketch-clear", "sketch-add"]) byId(id).disabled = empty;
    byId("sketch-hint").hidden = !empty;
  }

  // ------------------------------------------------------------------ files

  wireFiles() {
    const field = byId("files");
    field.addEventListener("change", async () => {
      const files = [...field.files];
      await this.addFiles(files);
      field.value = ""; // so that the same file can be chosen again
    });
    const drop = byId("drop");
    document.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      drop.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) drop.classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      drop.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault(); // or the browser would leave the page to show the file
      this.addFiles([...event.dataTransfer.files]);
    });
    document.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.addFiles([...event.clipboardData.files]);
    });
  }

  async addFiles(files) {
    if (byId("ways").querySelector("[value=pictures]").disabled) {
      this.complain("This model does not take pictures.");
      return;
    }
    if (this.way !== "pictures") this.choose("pictures");
    try {
      this.add(...await Promise.all(files.map(fromFile)));
    } catch (error) {
      this.complain(error.message);
    }
  }

  // ------------------------------------------------------------------ the camera

  wireCamera() {
    byId("camera-start").addEventListener("click", () => (this.camera.on ? this.stopCamera() : this.startCamera()));
    byId("camera-shoot").addEventListener("click", () => {
      this.drawn += 1;
      this.add(image(this.camera.shoot(), "image/jpeg", `camera picture ${this.drawn}`));
    });
  }

  async startCamera() {
    byId("camera-said").textContent = "";
    try {
      await this.camera.start();
    } catch (error) {
      byId("camera-said").textContent = error.message;
    }
    this.showCamera();
  }

  stopCamera() {
    this.camera.stop();
    this.showCamera();
  }

  showCamera() {
    byId("camera-start").textContent = this.camera.on ? "Stop the camera" : "Start the camera";
    byId("camera-shoot").disabled = !this.camera.on;
  }
}
