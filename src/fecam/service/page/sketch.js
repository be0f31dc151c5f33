// A sheet to draw on. Strokes are kept as points from 0 to 1, so a picture of any size can be made.

const INK = "#16202a";
const SIDE = 224; // what is sent: about what encoders look at
const LINE = 7 / SIDE; // the width of a line there
const SHOWN = 0.016; // the width of a line on the sheet
const MARGIN = 0.14; // of the drawing's size, on each side
const LEAST = 0.2; // of the sheet: a dot stays a dot

export class Sketch {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    this.current = null;
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.end(event));
    this.show();
  }

  get empty() {
    return this.strokes.length === 0;
  }

  place({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    return [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
  }

  begin(event) {
    if (this.current !== null || event.button !== 0) return; // one finger draws, others are ignored
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.current = event.pointerId;
    this.strokes.push([this.place(event)]);
    this.update();
  }

  move(event) {
    if (event.pointerId !== this.current) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length ? events : [event]) this.strokes.at(-1).push(this.place(one));
    this.show();
  }

  end(event) {
    if (event.pointerId !== this.current) return;
    this.current = null;
    this.update();
  }

  undo() {
    this.strokes.pop();
    this.update();
  }

  clear() {
    this.strokes = [];
    this.current = null;
    this.update();
  }

  take() {
    const { strokes } = this;
    this.clear();
    return strokes;
  }

  giveBack(strokes) {
    this.strokes = [...strokes, ...this.strokes];
    this.update();
  }

  update() {
    this.show();
    this.changed();
  }

  show() {
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    context.clearRect(0, 0, width, height);
    trace(context, this.strokes, ([x, y]) => [x * width, y * height], SHOWN * width);
  }

  // The drawing alone, squared, with a margin, dark on white, as base64 of a PNG.
  picture() {
    const xs = this.strokes.flat().map(([x]) => x);
    const ys = this.strokes.flat().map(([, y]) => y);
    const [left, right, top, bottom] = [least(xs), most(xs), least(ys), most(ys)];
    const side = Math.max(right - left, bottom - top, LEAST) * (1 + 2 * MARGIN);
    const [x0, y0] = [(left + right - side) / 2, (top + bottom - side) / 2];
    const sheet = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
    const context = sheet.getContext("2d");
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, SIDE, SIDE);
    trace(context, this.strokes, ([x, y]) => [((x - x0) / side) * SIDE, ((y - y0) / side) * SIDE], LINE * SIDE);
    return sheet.toDataURL("image/png").split(",")[1];
  }
}

const least = (values) => values.reduce((a, b) => Math.min(a, b));
const most = (values) => values.reduce((a, b) => Math.max(a, b));

// Through the middles of the points, bent at the points: smooth where a hand was quick.
function trace(context, strokes, at, width) {
  Object.assign(context, { strokeStyle: INK, lineWidth: width, lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    const points = stroke.map(at);
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
