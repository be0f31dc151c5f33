// A map of the classes: means, and ellipses of two standard deviations.

import { byId, fillTable, resizeSvg, svgElement } from "./dom.js";
import { percent } from "./format.js";

const [MIN_HEIGHT, MAX_HEIGHT, MARGIN_X, MARGIN_Y] = [130, 185, 48, 28];
const DEVIATIONS = 2; // an ellipse of two standard deviations contains most of a class
const [MIN_AXIS, MIN_RATIO] = [14, 0.4]; // px, and minor to major axis: an ellipse is never a bare line
const MAX_CHARS = 22; // of a name
const SIDES = [[0, -11, "middle"], [0, 22, "middle"], [11, 5, "start"], [-11, 5, "end"]];

let previous = new Map();

// The signs of the axes are arbitrary: use the reflection that moves the points least.
function reflect(points) {
  const shared = points.filter(({ label }) => previous.has(label));
  const distance = ([sx, sy]) => shared.reduce((sum, { label, x, y }) => {
    const [u, v] = previous.get(label);
    return sum + (sx * x - u) ** 2 + (sy * y - v) ** 2;
  }, 0);
  const [sx, sy] = [[1, 1], [-1, 1], [1, -1], [-1, -1]].reduce((a, b) => (distance(b) < distance(a) ? b : a));
  return points.map((point) => ({
    ...point,
    x: sx * point.x,
    y: sy * point.y,
    ellipse: { ...point.ellipse, angle: sx * sy * point.ellipse.angle },
  }));
}

const shorten = (label) => (label.length > MAX_CHARS ? `${label.slice(0, MAX_CHARS - 1)}…` : label);

// A side of the point where its name overlaps nothing; null if there is none.
function placeLabel([x, y], chars, taken, width) {
  for (const [dx, dy, anchor] of SIDES) {
    const labelWidth = 8 * chars;
    const left = x + dx - { start: 0, middle: labelWidth / 2, end: labelWidth }[anchor];
    const box = [left, y + dy - 14, left + labelWidth, y + dy + 4];
    const free = taken.every(([a, b, c, d]) => c < box[0] || a > box[2] || d < box[1] || b > box[3]);
    if (free && left >= 0 && left + labelWidth <= width) {
      taken.push(box);
      return { x: dx, y: dy, "text-anchor": anchor };
    }
  }
  return null;
}

// Half of the width and height of an ellipse.
function extent({ a, b, angle }) {
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return [Math.hypot(a * c, b * s), Math.hypot(a * s, b * c)];
}

export function showMap({ points: raw, explained }, hues) {
  byId("map-card").hidden = raw.length < 2;
  if (raw.length < 2) return;
  const points = reflect(raw.map((point) => ({
    ...point,
    label: String(point.label),
    ellipse: { ...point.ellipse, a: DEVIATIONS * point.ellipse.a, b: DEVIATIONS * point.ellipse.b },
  })));
  previous = new Map(points.map(({ label, x, y }) => [label, [x, y]]));
  const boxes = points.map(({ x, y, ellipse }) => [x, y, ...extent(ellipse)]);
  const [left, right] = [Math.min(...boxes.map(([x, , w]) => x - w)), Math.max(...boxes.map(([x, , w]) => x + w))];
  const [low, high] = [Math.min(...boxes.map(([, y, , h]) => y - h)), Math.max(...boxes.map(([, y, , h]) => y + h))];
  const map = byId("map");
  const width = resizeSvg(map, MAX_HEIGHT);
  const scale = Math.min((width - 2 * MARGIN_X) / (right - left || 1), (MAX_HEIGHT - 2 * MARGIN_Y) / (high - low || 1));
  const height = Math.max(MIN_HEIGHT, scale * (high - low) + 2 * MARGIN_Y); // two classes lie on a line
  resizeSvg(map, height);
  const toPixel = ({ x, y }) => [
    width / 2 + scale * (x - (left + right) / 2),
    height / 2 - scale * (y - (low + high) / 2),
  ];
  const existing = new Map([...map.children].map((group) => [group.dataset.label, group]));
  const taken = points.map(toPixel).map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  const groups = points.map((point) => {
    const [x, y] = toPixel(point);
    // Reused groups move smoothly. A name without space is only in the table.
    const group = existing.get(point.label) ?? svgElement("g", { class: "place" });
    group.dataset.label = point.label;
    group.style.transform = `translate(${x}px, ${y}px)`;
    group.style.setProperty("--hue", hues.get(point.label) ?? 190);
    const side = placeLabel([x, y], shorten(point.label).length, taken, width);
    const { a, b, angle } = point.ellipse;
    const major = Math.max(scale * a, MIN_AXIS);
    group.replaceChildren(
      svgElement("title", {}, `${point.label}, ${point.count}`),
      svgElement("ellipse", { rx: major, ry: Math.max(scale * b, MIN_RATIO * major), transform: `rotate(${(-180 * angle) / Math.PI})` }),
      svgElement("circle", { r: 4 }),
      side && svgElement("text", side, shorten(point.label)),
    );
    return group;
  });
  map.replaceChildren(...groups);
  const share = explained === null || explained === undefined ? "" : ` Shown: ${percent(explained)} of the variance of the means.`;
  byId("map-caption").textContent = `An ellipse contains most examples of a class.${share}`;
  fillTable(byId("map-table"), "Coordinates of the classes", ["class", "examples", "x", "y", "ellipse"],
    points.map(({ label, count, x, y, ellipse: { a, b } }) =>
      [label, count, x.toPrecision(3), y.toPrecision(3), `${a.toPrecision(2)} × ${b.toPrecision(2)}`]));
}
