// Input of examples: drawings, files, the clipboard, the camera, typed lines.

import { Camera } from "./camera.js";
import { byId, element } from "./dom.js";
import { fromFile, image, rows, texts } from "./examples.js";
import { Drawing } from "./drawing.js";

const KINDS = { draw: "images", pictures: "images", camera: "images", texts: "texts", features: "features" };

const LIVE_SIDE = 320; // px of a camera picture that is only predicted

export class ExampleInput {
  // `onChange` is called when the current example may have changed, `onTake` when it was taken away.
  constructor({ showError, onChange, onTake }) {
    Object.assign(this, { showError, onChange, onTake });
    this.tray = [];
    this.nPictures = 0;
    this.camera = new Camera(byId("video"));
    this.drawing = new Drawing(byId("drawing"), () => this.showDrawing());
    this.bindSources();
    this.bindDrawing();
    this.bindFiles();
    this.bindCamera();
  }

  get source() {
    return document.querySelector("input[name=source]:checked").value;
  }

  get kind() {
    return KINDS[this.source];
  }

  // All current examples: the tray, and what is drawn or typed.
  examples() {
    if (this.kind === "texts") return texts(byId("texts").value);
    if (this.kind === "features") return rows(byId("rows").value);
    if (this.source === "draw" && !this.drawing.empty) return [...this.tray, this.drawnExample()];
    // Without a chosen picture, the camera's current one.
    return this.source === "camera" && this.camera.on && !this.tray.length ? [this.photograph()] : this.tray;
  }

  // The example to predict while it changes; null if there is none. `width`: numbers per row.
  current(width) {
    if (this.source === "draw" && !this.drawing.empty) return image(this.drawing.picture(), "image/png", "your drawing");
    if (this.source === "camera" && this.camera.on) return image(this.camera.capture(LIVE_SIDE), "image/jpeg", "the camera");
    if (this.kind === "images") return this.tray.at(-1) ?? null;
    try {
      const last = this.examples().at(-1);
      return last && (this.kind === "texts" || last.payload.length === width) ? last : null;
    } catch {
      return null; // a number that is not complete
    }
  }

  // The same, and clears the input; `restore` undoes that.
  take() {
    const examples = this.examples();
    const field = { texts: byId("texts"), features: byId("rows") }[this.kind];
    if (field) {
      const { value } = field;
      field.value = "";
      this.onTake();
      return { examples, restore: () => { field.value = [value, field.value].filter(Boolean).join("\n"); this.onChange(); } };
    }
    const strokes = this.source === "draw" ? this.drawing.take() : [];
    this.tray = [];
    this.showTray();
    this.onTake();
    return {
      examples,
      restore: () => {
        // Something else may have been drawn meanwhile: then the drawing comes back as a picture.
        const redraw = strokes.length > 0 && this.source === "draw" && this.drawing.empty;
        this.tray = [...redraw ? examples.slice(0, -1) : examples, ...this.tray];
        if (redraw) this.drawing.restore(strokes);
        this.showTray();
      },
    };
  }

  // A model with classes takes only one kind of items.
  restrictTo(kind) {
    for (const label of byId("sources").querySelectorAll("label")) {
      label.hidden = kind !== null && label.dataset.kind !== kind;
      label.firstElementChild.disabled = label.hidden;
    }
    if (kind !== null && this.kind !== kind) this.choose(byId("sources").querySelector("label:not([hidden]) input").value);
  }

  choose(source) {
    document.querySelector(`input[name=source][value=${source}]`).checked = true;
    this.showSource();
  }

  bindSources() {
    byId("sources").addEventListener("change", () => this.showSource());
    for (const id of ["texts", "rows"]) byId(id).addEventListener("input", () => this.onChange());
    this.showSource(); // a reloaded page keeps the choice
  }

  showSource() {
    for (const source of Object.keys(KINDS)) byId(`source-${source}`).hidden = source !== this.source;
    if (this.source !== "camera" && this.camera.on) this.stopCamera();
    byId("tray").hidden = this.kind !== "images";
    this.showError("");
    this.onTake();
  }

  add(...examples) {
    this.tray.push(...examples);
    this.showTray();
  }

  showTray() {
    byId("tray").replaceChildren(...this.tray.map((example) => element("li", {},
      element("img", { src: example.picture, alt: example.name }),
      element("button", {
        type: "button",
        "aria-label": `Remove ${example.name}`,
        onclick: () => {
          this.tray = this.tray.filter((other) => other !== example);
          this.showTray();
          byId("tray").querySelector("button")?.focus();
        },
      }, "×"))));
    this.onChange();
  }

  drawnExample() {
    this.nPictures += 1;
    return image(this.drawing.picture(), "image/png", `drawing ${this.nPictures}`);
  }

  bindDrawing() {
    byId("stroke-undo").addEventListener("click", () => this.drawing.undo());
    byId("drawing-clear").addEventListener("click", () => this.drawing.clear());
    byId("drawing-add").addEventListener("click", () => {
      this.add(this.drawnExample());
      this.drawing.clear();
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input:not([type=radio]), textarea, dialog");
      if (typing || !(event.ctrlKey || event.metaKey) || event.key !== "z" || this.source !== "draw") return;
      event.preventDefault();
      this.drawing.undo();
    });
  }

  showDrawing() {
    const { empty } = this.drawing;
    for (const id of ["stroke-undo", "drawing-clear", "drawing-add"]) byId(id).disabled = empty;
    byId("drawing-hint").hidden = !empty;
    if (empty) this.onTake();
    else this.onChange();
  }

  bindFiles() {
    const field = byId("files");
    field.addEventListener("change", async () => {
      const files = [...field.files];
      await this.addFiles(files);
      field.value = ""; // the same file can be chosen again
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
      event.preventDefault(); // else the browser opens the file
      this.addFiles([...event.dataTransfer.files]);
    });
    document.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.addFiles([...event.clipboardData.files]);
    });
  }

  async addFiles(files) {
    if (byId("sources").querySelector("[value=pictures]").disabled) {
      this.showError("This model does not accept pictures.");
      return;
    }
    if (this.source !== "pictures") this.choose("pictures");
    try {
      this.add(...await Promise.all(files.map(fromFile)));
    } catch (error) {
      this.showError(error.message);
    }
  }

  bindCamera() {
    byId("camera-start").addEventListener("click", () => (this.camera.on ? this.stopCamera() : this.startCamera()));
    byId("camera-capture").addEventListener("click", () => this.add(this.photograph()));
  }

  photograph() {
    this.nPictures += 1;
    return image(this.camera.capture(), "image/jpeg", `camera picture ${this.nPictures}`);
  }

  async startCamera() {
    byId("camera-status").textContent = "";
    try {
      await this.camera.start();
    } catch (error) {
      byId("camera-status").textContent = error.message;
    }
    this.showCamera();
  }

  stopCamera() {
    this.camera.stop();
    this.showCamera();
  }

  showCamera() {
    byId("camera-start").textContent = this.camera.on ? "Stop the camera" : "Start the camera";
    byId("camera-capture").disabled = !this.camera.on;
    this.onTake();
  }
}
