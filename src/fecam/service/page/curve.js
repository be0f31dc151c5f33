// Accuracy on the held-out examples after each change.

import { byId, fillTable, resizeSvg, svgElement } from "./dom.js";
import { percent, plural } from "./format.js";

const [LEFT, TOP, BOTTOM, HEIGHT] = [52, 10, 96, 122];

const MIN_COUNT = 5; // held-out examples: one of one correct would read as 100 %

// `count`: the number of held-out examples.
export function showCurve(all, count) {
  const points = all.filter((point) => point.count >= MIN_COUNT);
  byId("curve-card").hidden = count === 0 && points.length === 0;
  for (const node of byId("curve-card").querySelectorAll("figure, details, .about-curve")) node.hidden = points.length === 0;
  byId("curve-wait").hidden = points.length > 0;
  byId("curve-wait").textContent = `Shown from ${MIN_COUNT} held-out examples on; so far ${count}.`;
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
    svgElement("text", { class: "axis-text", x: (LEFT + right) / 2, y: BOTTOM + 22, "text-anchor": "middle" }, "changes"),
  );
  const last = points.at(-1);
  byId("curve-caption").textContent =
    `${Math.round(last.accuracy * last.count)} of ${plural(last.count, "held-out example")} correct: ${percent(last.accuracy)}.`;
  fillTable(byId("curve-table"), "Accuracy after each change", ["after", "correct", "held out", "accuracy"],
    [...points].reverse().map((point) =>
      [point.what, Math.round(point.accuracy * point.count), point.count, percent(point.accuracy)]));
}
