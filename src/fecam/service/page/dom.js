// Elements from the outside world's words: text goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export function fillTable(table, caption, head, rows) {
  const cells = (tag, row) => row.map((text, at) =>
    make(at ? tag : "th", { scope: tag === "th" ? "col" : at ? null : "row" }, String(text)));
  table.replaceChildren(
    make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...cells("th", head))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells("td", row)))),
  );
}

// A drawing has a unit of one pixel, so that its letters are as large on a phone as on a desk.
export function sheet(svg, height) {
  const width = Math.max(260, Math.round(svg.parentElement.clientWidth));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return width;
}

// A number that only the page knows needs no secure context, which crypto.randomUUID would.
export function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
