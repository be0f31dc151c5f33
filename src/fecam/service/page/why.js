// Why an example is predicted as its class: sentences, and bars of the distances.

import { byId, element } from "./dom.js";
import { plural } from "./format.js";

const MAX_DIRECTIONS = 3;
// What the matrix of a class consists of. The parts of a distance sum to it; the last text says what
// it means if the part is the largest one.
const PARTS = [
  ["from_samples", "its own examples", "in which its own examples vary"],
  ["from_prior", "what all classes share", "which it knows from the other classes: more examples of it would help"],
  ["from_shrinkage", "shrinkage", "in which no learned example varies: more examples would help"],
];

const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const share = (part, whole) => `${Math.round((100 * part) / whole)} %`;

// `rejected`: the answer was that it is none of the classes.
export function showWhy(example, answer, rejected) {
  byId("why-label").textContent = rejected ? "none of these" : String(answer.explained);
  byId("why-content").replaceChildren(...answer.error
    ? [element("p", {}, answer.error)]
    : [
      ...sentences(answer).map((text) => element("p", { dir: "auto" }, text)),
      element("h3", {}, "Distances"),
      element("ul", { class: "distances" }, ...distances(answer.nearest)),
      legend(),
      element("h3", {}, `Directions of ${answer.explained} with the largest part of its distance`),
      element("ul", { class: "directions" }, ...directions(answer)),
    ]);
  byId("why-picture").hidden = example.picture === null;
  if (example.picture !== null) Object.assign(byId("why-picture"), { src: example.picture, alt: example.name });
  byId("why-dialog").showModal();
}

function sentences({ label, novelty, margin, nearest }) {
  const [first, second] = nearest;
  const [key, , meaning] = PARTS.reduce((a, b) => (first[b[0]] > first[a[0]] ? b : a));
  return [
    `${label} is ${second ? `nearest, at ${number(first.distance)}` : "the only class"}; a typical example of it lies at ${number(first.expected)}.`
      + (second ? ` ${second.label} is ${number(margin)} farther away.` : ""),
    novelty === null
      ? "With so few examples nobody can tell yet how far is too far."
      : `The novelty is ${novelty.toFixed(1).replace("-", "−")}; one in twenty learned examples lies above 1.6.`,
    `${label} is known from ${plural(first.count, "example")}. ${share(first[key], first.distance)} of the distance lies in directions ${meaning}.`,
  ];
}

// A bar per class; its parts are in scale, and a mark shows a typical example of the class.
function distances(nearest) {
  const longest = Math.max(...nearest.flatMap(({ distance, expected }) => [distance, expected])) || 1;
  const width = (node, value) => {
    node.style.width = `${(100 * value) / longest}%`;
    return node;
  };
  return nearest.map((record) => {
    const typical = element("b", { title: "a typical example" });
    typical.style.left = `${(100 * record.expected) / longest}%`;
    return element("li", {},
      element("span", { class: "name", dir: "auto", title: String(record.label) }, String(record.label)),
      element("span", { class: "bar", "aria-hidden": "true" },
        ...PARTS.map(([key]) => width(element("i", { class: key }), Math.max(0, record[key]))), typical),
      element("span", { class: "share" }, number(record.distance)));
  });
}

const legend = () => element("p", { class: "legend quiet small" },
  ...PARTS.map(([key, text]) => element("span", {}, element("i", { class: key }), text)),
  element("span", {}, element("b"), "a typical example"));

function directions({ directions: all, other_directions: others, nearest, explained }) {
  const { distance } = nearest.find(({ label }) => label === explained) ?? nearest[0];
  const shown = all.slice(0, MAX_DIRECTIONS);
  const rest = others + all.slice(MAX_DIRECTIONS).reduce((sum, { contribution }) => sum + contribution, 0);
  return [
    ...shown.map(({ contribution, deviation, number: i }) => element("li", {},
      `${share(contribution, distance)}: direction ${i}, ${Math.abs(deviation).toFixed(1)} standard deviations off`)),
    element("li", { class: "quiet" }, `${share(rest, distance)}: all other directions`),
  ];
}
