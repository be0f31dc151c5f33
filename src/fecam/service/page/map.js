// The classes as the model sees them: prototypes, and ellipses for how examples spread around them.

import { byId, draw, fillTable, sheet } from "./dom.js";
import { percent } from "./words.js";

const [LOWEST, HIGHEST, ACROSS, UP] = [170, 400, 48, 36];

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

// How far an ellipse reaches to the right and upwards.
function reach({ a, b, angle }) {
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return [Math.hypot(a * c, b * s), Math.hypot(a * s, b * c)];
}

export function showMap({ points: raw, explained }, hues) {
  byId("map-card").hidden = raw.length < 2;
  if (raw.length < 2) return;
  const points = mirrored(raw.map((point) => ({ ...point, label: String(point.label) })));
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
  const named = [];
  const groups = points.map((point) => {
    const [x, y] = at(point);
    // Places that were there before glide; a name that would lie on another one is left to the table.
    const place = places.get(point.label) ?? draw("g", { class: "place" });
    place.dataset.label = point.label;
    place.style.transform = `translate(${x}px, ${y}px)`;
    place.style.setProperty("--hue", hues.get(point.label) ?? 190);
    const free = named.every(([u, v]) => Math.abs(u - x) > 70 || Math.abs(v - y) > 18);
    if (free) named.push([x, y]);
    const { a, b, angle } = point.ellipse;
    place.replaceChildren(
      draw("title", {}, `${point.label}, ${point.count}`),
      draw("ellipse", { rx: scale * a, ry: scale * b, transform: `rotate(${(-180 * angle) / Math.PI})` }),
      draw("circle", { r: 5 }),
      free ? draw("text", { y: -12 }, point.label.length > 22 ? `${point.label.slice(0, 21)}…` : point.label) : null,
    );
    return place;
  });
  map.replaceChildren(...groups);
  byId("map-said").textContent = "Each point is the average of a class, each ellipse how its examples spread. " +
    "Classes that lie close are easily mixed up." +
    (explained === null || explained === undefined ? "" : ` These two directions show ${percent(explained)} of what sets the classes apart.`);
  fillTable(byId("map-table"), "Places of the classes", ["class", "examples", "across", "up", "spread"],
    points.map(({ label, count, x, y, ellipse: { a, b } }) =>
      [label, count, x.toPrecision(3), y.toPrecision(3), `${a.toPrecision(2)} × ${b.toPrecision(2)}`]));
}
