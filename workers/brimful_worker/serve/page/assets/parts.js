// Elements and wording.

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((each) => each !== null && each !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

export const whole = (number) => Math.round(number).toLocaleString("en-US");

export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

/** At most four characters and a letter: 12.3k. */
export function brief(number) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (number >= size) {
      const scaled = number / (letter === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)}${letter}`;
    }
  }
  return number >= 10 || Number.isInteger(number) ? whole(number) : number.toFixed(1);
}

export const seconds = (number) => `${number < 10 ? number.toFixed(1) : whole(number)} s`;

export function ago(number) {
  if (number < 2) return "now";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (number >= 2 * size) return `${Math.round(number / size)} ${unit} ago`;
  }
  return `${Math.round(number)} s ago`;
}

export const clock = (at) => new Date(1000 * at).toLocaleTimeString([], { hourCycle: "h23" });

/** Columns: [title, cell(row), "number" or ""]. */
export function table(place, title, note, columns, rows, none) {
  const head = make("h2", {}, title, make("small", {}, note));
  if (!rows.length) return place.replaceChildren(head, make("p", { class: "none" }, none));
  const titles = columns.map(([name, , kind]) => make("th", { scope: "col", class: kind }, name));
  const lines = rows.map((row) =>
    make("tr", {}, ...columns.map(([, cell, kind]) => make("td", { class: kind }, cell(row)))));
  const whole = make("table", {}, make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...lines));
  place.replaceChildren(head, make("div", { class: "scroll" }, whole));
}
