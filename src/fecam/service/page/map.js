// The classes as the model sees them: prototypes, and ellipses for how examples spread around them.

import { byId, draw, fillTable, sheet } from "./dom.js";
import { percent } from "./words.js";

const [LOWEST, HIGHEST, ACROSS, UP] = [170, 400, 48, 36];
const DEVIATIONS = 2; // an ellipse of two standard deviations holds most of a class
const LONGEST = 22; // letters of a name
const SIDES = [[0, -11, "middle"], [0, 22, "middle"], [11, 5, "start"], [-11, 5, "end"]];

let before = new Map();

// A projection has no up or left: of the four mirror images, take the one that moves least.
function mirrored(points) {
  const known = points.filter(({ label }) => before.has(label));
  const moved = ([sx, sy]) => known.reduce((sum, { label, x, y }) => {
    const [u, v] = before.get(label);
    return sum + (sx * x - u) ** 2 + (sy * y - v) ** 2;
  }, 0);
  const [sx, sy] = [[1, 1], [-1, 1], [1, -1], [-1, -1]].reduce((a, b) => (moved(b) < moved(a) ? b : a));
  return points.map((point) => ({
    ...point,
    x: sx * point.x,
    y: sy * point.y,
    ellipse: { ...point.ellipse, angle: sx * sy * point.ellipse.angle },
  }));
}

const short = (label) => (label.length > LONGEST ? `${label.slice(0, LONGEST - 1)}…` : label);

// A side of the point where the name lies on no other name and on no point; null if all are taken.
function besides([x, y], letters, taken, width) {
  for (const [dx, dy, anchor] of SIDES) {
    const wide = 8 * letters;
    const left = x + dx - { start: 0, middle: wide / 2, end: wide }[anchor];
    const box = [left, y + dy - 14, left + wide, y + dy + 4];
    const free = taken.every(([a, b, c, d]) => c < box[0] || a > box[2] || d < box[1] || b > box[3]);
    if (free && left >= 0 && left + wide <= width) {
      taken.push(box);
      return { x: dx, y: dy, "text-anchor": anchor };
    }
  }
  return null;
}

// How far an ellipse reaches to the right and upwards.
function reach({ a, b, angle }) {
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return [Math.hypot(a * c, b * s), Math.hypot(a * s, b * c)];
}

export function showMap({ points: raw, explained }, hues) {
  byId("map-card").hidden = raw.length < 2;
  if (raw.length < 2) return;
  const points = mirrored(raw.map((point) => ({
    ...point,
    label: String(point.label),
    ellipse: { ...point.ellipse, a: DEVIATIONS * point.ellipse.a, b: DEVIATIONS * point.ellipse.b },
  })));
  before = new Map(points.map(({ label, x, y }) => [label, [x, y]]));
  const boxes = points.map(({ x, y, ellipse }) => [x, y, ...reach(ellipse)]);
  const [left, right] = [Math.min(...boxes.map(([x, , w]) => x - w)), Math.max(...boxes.map(([x, , w]) => x + w))];
  const [low, high] = [Math.min(...boxes.map(([, y, , h]) => y - h)), Math.max(...boxes.map(([, y, , h]) => y + h))];
  const map = byId("map");
  const width = sheet(map, HIGHEST);
  const scale = Math.min((width - 2 * ACROSS) / (right - left || 1), (HIGHEST - 2 * UP) / (high - low || 1));
  const height = Math.max(LOWEST, scale * (high - low) + 2 * UP); // two classes lie on a line: no empty sheet
  sheet(map, height);
  const at = ({ x, y }) => [
    width / 2 + scale * (x - (left + right) / 2),
    height / 2 - scale * (y - (low + high) / 2),
  ];
  const places = new Map([...map.children].map((place) => [place.dataset.label, place]));
  const taken = points.map(at).map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  const groups = points.map((point) => {
    const [x, y] = at(point);
    // Places that were there before glide; a name that finds no room is left to the table.
    const place = places.get(point.label) ?? draw("g", { class: "place" });
    place.dataset.label = point.label;
    place.style.transform = `translate(${x}px, ${y}px)`;
    place.style.setProperty("--hue", hues.get(point.label) ?? 190);
    const side = besides([x, y], short(point.label).length, taken, width);
    const { a, b, angle } = point.ellipse;
    place.replaceChildren(
      draw("title", {}, `${point.label}, ${point.count}`),
      draw("ellipse", { rx: scale * a, ry: scale * b, transform: `rotate(${(-180 * angle) / Math.PI})` }),
      draw("circle", { r: 5 }),
      side && draw("text", side, short(point.label)),
    );
    return place;
  });
  map.replaceChildren(...groups);
  byId("map-said").textContent = "Each point is the average of a class; most of its examples lie in its ellipse. " +
    "Classes that lie close are easily mixed up." +
    (explained === null || explained === undefined ? "" : ` These two directions show ${percent(explained)} of what sets the classes apart.`);
  fillTable(byId("map-table"), "Places of the classes", ["class", "examples", "across", "up", "spread"],
    points.map(({ label, count, x, y, ellipse: { a, b } }) =>
      [label, count, x.toPrecision(3), y.toPrecision(3), `${a.toPrecision(2)} × ${b.toPrecision(2)}`]));
}
