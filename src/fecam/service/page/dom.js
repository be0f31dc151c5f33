// Helpers that create elements. Text is inserted as text, never as markup.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const element = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const svgElement = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export function fillTable(table, caption, head, rows) {
  const cells = (tag, row) => row.map((text, i) =>
    element(i ? tag : "th", { scope: tag === "th" ? "col" : i ? null : "row" }, String(text)));
  table.replaceChildren(
    element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...cells("th", head))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))),
  );
}

// One SVG unit is one pixel, so that text has the same size on all screens. Returns the width.
export function resizeSvg(svg, height) {
  const width = Math.max(260, Math.round(svg.parentElement.clientWidth));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return width;
}

// crypto.randomUUID would need a secure context.
export function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
