// The accuracy on what was kept back, lesson by lesson.

import { byId, draw, fillTable, sheet } from "./dom.js";
import { many, percent } from "./words.js";

const [LEFT, TOP, BOTTOM, HEIGHT] = [52, 12, 160, 200];

export function showCurve(points) {
  byId("curve-card").hidden = points.length === 0;
  if (points.length === 0) return;
  const right = sheet(byId("curve"), HEIGHT) - 12;
  const x = (at) => (points.length < 2 ? (LEFT + right) / 2 : LEFT + 12 + ((right - LEFT - 24) * at) / (points.length - 1));
  const y = (accuracy) => BOTTOM - (BOTTOM - TOP) * accuracy;
  const line = points.map(({ accuracy }, at) => `${x(at).toFixed(1)},${y(accuracy).toFixed(1)}`).join(" ");
  byId("curve").replaceChildren(
    ...[0, 0.5, 1].flatMap((share) => [
      draw("line", { class: "axis", x1: LEFT, x2: right, y1: y(share), y2: y(share) }),
      draw("text", { class: "axis-text", x: LEFT - 8, y: y(share) + 5, "text-anchor": "end" }, `${100 * share} %`),
    ]),
    draw("polygon", { class: "curve-area", points: `${x(0)},${BOTTOM} ${line} ${x(points.length - 1)},${BOTTOM}` }),
    draw("polyline", { class: "curve-line", points: line }),
    ...points.map(({ accuracy, what }, at) =>
      draw("circle", { class: "curve-dot", cx: x(at), cy: y(accuracy), r: points.length > 40 ? 2 : 5 },
        draw("title", {}, `${what}: ${percent(accuracy)}`))),
    draw("text", { class: "axis-text", x: (LEFT + right) / 2, y: BOTTOM + 26, "text-anchor": "middle" }, "lessons"),
  );
  const { accuracy, count } = points.at(-1);
  byId("curve-said").textContent =
    `Now it is right on ${Math.round(accuracy * count)} of ${many(count, "kept example")}: ${percent(accuracy)}.`;
  fillTable(byId("curve-table"), "Accuracy after each lesson", ["after", "right", "kept", "accuracy"],
    [...points].reverse().map((point) =>
      [point.what, Math.round(point.accuracy * point.count), point.count, percent(point.accuracy)]));
}
