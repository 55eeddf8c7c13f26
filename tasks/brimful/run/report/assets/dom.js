// Elements and numbers. All text goes in as text nodes: none of it is ever parsed as HTML.

const find = (selector) => document.querySelector(selector);

function setUp(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** An element. `on…` attributes are listeners; null, undefined and false leave an attribute or child out. */
const h = (tag, attributes = {}, ...children) => setUp(document.createElement(tag), attributes, children);

const svg = (tag, attributes = {}, ...children) =>
  setUp(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const count = (number) => number.toLocaleString("en");

const counted = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** A number of any size in about three digits: 0.042, 1.5, 231, 30k. */
function short(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  for (const [power, unit] of [[1e9, "B"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= power) return `${trim(number / (unit === "k" ? 1e3 : power))}${unit}`;
  }
  if (size >= 1000) return count(Math.round(number));
  return trim(number);
}

const trim = (number) => String(Number(number.toPrecision(3)));

/** Text with control characters, NUL among them, as their pictures. */
const visible = (text) =>
  // eslint-disable-next-line no-control-regex
  text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g, (each) =>
    each === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + each.charCodeAt(0)));

/** Up to `length` UTF-16 units of a text; never half of a surrogate pair. */
function cut(text, start, length) {
  let end = Math.min(text.length, start + length);
  const splits = (at) =>
    at > 0 && at < text.length && /[\ud800-\udbff]/.test(text[at - 1]) && /[\udc00-\udfff]/.test(text[at]);
  if (splits(end)) end -= 1;
  return text.slice(splits(start) ? start + 1 : start, end);
}

const pattern = (needle) => new RegExp(needle.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");

/** The text as nodes, with what was searched for in <mark>. */
function marked(text, needle) {
  if (!needle) return [visible(text)];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(pattern(needle))) {
    if (match.index > end) nodes.push(visible(text.slice(end, match.index)));
    nodes.push(h("mark", {}, visible(match[0])));
    end = match.index + match[0].length;
    if (nodes.length > 2000) break;
  }
  if (end < text.length) nodes.push(visible(text.slice(end)));
  return nodes;
}

/** Lets the browser paint and take input between two slices of work. */
const breathe = () => new Promise((resolve) => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => { channel.port1.close(); resolve(); };
  channel.port2.postMessage(null);
});

/** After the browser has drawn what is there now. */
const painted = () => new Promise((resolve) => requestAnimationFrame(() => breathe().then(resolve)));
