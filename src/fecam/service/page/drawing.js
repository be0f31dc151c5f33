// A canvas to draw on. Strokes are stored as points from 0 to 1, so that pictures of any size can be made.

const INK = "#16202a";
const SIDE = 224; // px of the sent picture: the usual input of encoders
const LINE_WIDTH = 7 / SIDE; // in the sent picture
const CANVAS_LINE_WIDTH = 0.016; // on the canvas
const MARGIN = 0.14; // of the size of the drawing, on each side
const MIN_SIZE = 0.2; // of the canvas, so that a dot stays a dot

export class Drawing {
  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.onChange = onChange;
    this.strokes = [];
    this.pointer = null;
    canvas.addEventListener("pointerdown", (event) => this.start(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.end(event));
    this.show();
  }

  get empty() {
    return this.strokes.length === 0;
  }

  toPoint({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    return [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
  }

  start(event) {
    if (this.pointer !== null || event.button !== 0) return; // only the first finger draws
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.pointer = event.pointerId;
    this.strokes.push([this.toPoint(event)]);
    this.update();
  }

  move(event) {
    if (event.pointerId !== this.pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const point of events.length ? events : [event]) this.strokes.at(-1).push(this.toPoint(point));
    this.update();
  }

  end(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = null;
    this.update();
  }

  undo() {
    this.strokes.pop();
    this.update();
  }

  clear() {
    this.strokes = [];
    this.pointer = null;
    this.update();
  }

  take() {
    const { strokes } = this;
    this.clear();
    return strokes;
  }

  restore(strokes) {
    this.strokes = [...strokes, ...this.strokes];
    this.update();
  }

  update() {
    this.show();
    this.onChange();
  }

  show() {
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    context.clearRect(0, 0, width, height);
    trace(context, this.strokes, ([x, y]) => [x * width, y * height], CANVAS_LINE_WIDTH * width);
  }

  // The bounding square of the drawing with a margin, dark on white, as base64 of a PNG.
  picture() {
    const xs = this.strokes.flat().map(([x]) => x);
    const ys = this.strokes.flat().map(([, y]) => y);
    const [left, right, top, bottom] = [min(xs), max(xs), min(ys), max(ys)];
    const side = Math.max(right - left, bottom - top, MIN_SIZE) * (1 + 2 * MARGIN);
    const [x0, y0] = [(left + right - side) / 2, (top + bottom - side) / 2];
    const canvas = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
    const context = canvas.getContext("2d");
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, SIDE, SIDE);
    trace(context, this.strokes, ([x, y]) => [((x - x0) / side) * SIDE, ((y - y0) / side) * SIDE], LINE_WIDTH * SIDE);
    return canvas.toDataURL("image/png").split(",")[1];
  }
}

const min = (values) => values.reduce((a, b) => Math.min(a, b));
const max = (values) => values.reduce((a, b) => Math.max(a, b));

// Quadratic curves through the midpoints, with the points as control points.
function trace(context, strokes, toPixel, width) {
  Object.assign(context, { strokeStyle: INK, lineWidth: width, lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    const points = stroke.map(toPixel);
    context.beginPath();
    context.moveTo(...points[0]);
    for (let i = 1; i < points.length - 1; i += 1) {
      const [[x, y], [u, v]] = [points[i], points[i + 1]];
      context.quadraticCurveTo(x, y, (x + u) / 2, (y + v) / 2);
    }
    context.lineTo(...points.at(-1));
    context.stroke();
  }
}
