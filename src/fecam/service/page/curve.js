// Accuracy on the held-out examples after each change.

import { byId, fillTable, resizeSvg, svgElement } from "./dom.js";
import { percent, plural } from "./format.js";

const [LEFT, TOP, BOTTOM, HEIGHT] = [52, 12, 160, 200];

export function showCurve(points) {
  byId("curve-card").hidden = points.length === 0;
  if (points.length === 0) return;
  const right = resizeSvg(byId("curve"), HEIGHT) - 12;
  const x = (i) => (points.length < 2 ? (LEFT + right) / 2 : LEFT + 12 + ((right - LEFT - 24) * i) / (points.length - 1));
  const y = (accuracy) => BOTTOM - (BOTTOM - TOP) * accuracy;
  const line = points.map(({ accuracy }, i) => `${x(i).toFixed(1)},${y(accuracy).toFixed(1)}`).join(" ");
  byId("curve").replaceChildren(
    ...[0, 0.5, 1].flatMap((share) => [
      svgElement("line", { class: "axis", x1: LEFT, x2: right, y1: y(share), y2: y(share) }),
      svgElement("text", { class: "axis-text", x: LEFT - 8, y: y(share) + 5, "text-anchor": "end" }, `${100 * share} %`),
    ]),
    svgElement("polygon", { class: "curve-area", points: `${x(0)},${BOTTOM} ${line} ${x(points.length - 1)},${BOTTOM}` }),
    svgElement("polyline", { class: "curve-line", points: line }),
    ...points.map(({ accuracy, what }, i) =>
      svgElement("circle", { class: "curve-dot", cx: x(i), cy: y(accuracy), r: points.length > 40 ? 2 : 5 },
        svgElement("title", {}, `${what}: ${percent(accuracy)}`))),
    svgElement("text", { class: "axis-text", x: (LEFT + right) / 2, y: BOTTOM + 26, "text-anchor": "middle" }, "changes"),
  );
  const { accuracy, count } = points.at(-1);
  byId("curve-caption").textContent =
    `${Math.round(accuracy * count)} of ${plural(count, "held-out example")} correct: ${percent(accuracy)}.`;
  fillTable(byId("curve-table"), "Accuracy after each change", ["after", "correct", "held out", "accuracy"],
    [...points].reverse().map((point) =>
      [point.what, Math.round(point.accuracy * point.count), point.count, percent(point.accuracy)]));
}
