// One small chart: the last minutes of one or two figures, with their limit.

import { brief, clock, draw, make } from "./parts.js";

const HEIGHT = 132;
const TOP = 14;
const FOOT = 18;
const GAP_S = 15;

/** ``lines``: functions of a point, stacked from the bottom up, each with a name. ``marks``: a point's that is marked. */
export class Chart {
  constructor(place, { title, lines, marks, unit = "" }) {
    Object.assign(this, { lines, marks, unit, points: [], limit: null, span: 900, now: 0 });
    this.value = make("strong");
    this.legend = make("small");
    this.svg = draw("svg", { height: HEIGHT, role: "img", "aria-label": title });
    this.tip = make("output", { class: "tip", hidden: "" });
    this.card = make("article", { class: "chart" },
      make("h2", {}, title, this.legend, this.value), make("div", { class: "plot" }, this.svg, this.tip));
    place.append(this.card);
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.at = null;
  }

  update({ points, limit, now, span, value, legend = "" }) {
    Object.assign(this, { points, limit, now, span });
    this.value.textContent = value;
    this.legend.textContent = legend;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const sums = this.points.map((point) => this.lines.reduce((sum, [, of]) => sum + of(point), 0));
    const highest = Math.max(0, ...sums);
    const top = this.limit ? Math.max(highest, this.limit) : Math.max(ceiling(highest), 1);
    this.x = (at) => width - ((this.now - at) / this.span) * width;
    this.y = (value) => HEIGHT - FOOT - (value / top) * (HEIGHT - FOOT - TOP);
    const parts = [draw("line", { class: "ground", x1: 0, x2: width, y1: this.y(0), y2: this.y(0) })];
    const step = this.span > 300 ? 5 : 1;
    for (let minutes = step; minutes < this.span / 60; minutes += step) {
      const x = this.x(this.now - 60 * minutes);
      parts.push(draw("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: this.y(0) }),
        draw("text", { x, y: HEIGHT - 4, "text-anchor": "middle" }, `−${minutes} min`));
    }
    parts.push(draw("text", { x: width, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
    let below = () => 0;
    this.lines.forEach(([, of], level) => {
      const under = below;
      const value = (point) => under(point) + of(point);
      for (const run of runs(this.points)) {
        const over = run.map((point) => `${this.x(point.at).toFixed(1)},${this.y(value(point)).toFixed(1)}`);
        const back = run.map((point) => `${this.x(point.at).toFixed(1)},${this.y(under(point)).toFixed(1)}`).reverse();
        parts.push(draw("path", { class: `area n${level}`, d: `M${over.join("L")}L${back.join("L")}Z` }),
          draw("path", { class: `line n${level}`, d: `M${over.join("L")}` }));
      }
      below = value;
    });
    const high = this.limit ?? top;
    parts.push(draw("line", { class: this.limit ? "limit" : "grid", x1: 0, x2: width, y1: this.y(high), y2: this.y(high) }),
      draw("text", { class: this.limit ? "limit-word" : "", x: 0, y: this.y(high) - 4 },
        `${this.limit ? "limit " : ""}${brief(high)}${this.unit}`));
    if (this.marks) {
      for (const point of this.points.filter(this.marks)) {
        const x = this.x(point.at);
        parts.push(draw("line", { class: "mark", x1: x, x2: x, y1: this.y(0), y2: this.y(0) + 4 }));
      }
    }
    this.cursor = draw("line", { class: "cursor", y1: TOP, y2: this.y(0), visibility: "hidden" });
    this.svg.replaceChildren(...parts, this.cursor);
    this.point(this.at);
  }

  /** Show the figures at a place; null shows none. */
  point(at) {
    this.at = at;
    const near = at === null || !this.points.length ? null : this.points.reduce((best, point) =>
      (Math.abs(this.x(point.at) - at) < Math.abs(this.x(best.at) - at) ? point : best));
    this.tip.hidden = near === null;
    this.cursor?.setAttribute("visibility", near === null ? "hidden" : "visible");
    if (near === null) return;
    const x = this.x(near.at);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const figures = this.lines.map(([name, of]) => `${brief(of(near))}${this.unit}${name ? ` ${name}` : ""}`);
    this.tip.textContent = `${clock(near.at)}  ${figures.join(", ")}`;
    const most = this.svg.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(most, x - this.tip.offsetWidth / 2))}px`;
  }
}

/** Points without a longer silence between them. */
function runs(points) {
  const found = [];
  points.forEach((point, index) => {
    if (!index || point.at - points[index - 1].at > GAP_S) found.push([]);
    found.at(-1).push(point);
  });
  return found;
}

/** The next round number: 1, 2, 4, 5, 8 or 10 times a power of ten. */
function ceiling(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].find((each) => each * power >= value) * power;
}
