// One rollout or failure as an element: short in the list, whole in the reader.

const SHORT = 700; // UTF-16 units of a text in the list
const PIECE = 100_000; // of a text in the reader, at once

const PLAIN_ENDS = new Set(["stop", "None", "null"]);

/** The text of a rollout and of what its message holds beside it: reasoning, tool calls. */
function textParts(cell) {
  const parts = [];
  const message = cell.message ?? {};
  const reasoning = message.reasoning_content ?? message.reasoning;
  if (typeof reasoning === "string" && reasoning) parts.push(["reasoning", reasoning]);
  if (cell.text) parts.push(["text", cell.text]);
  for (const call of Array.isArray(message.tool_calls) ? message.tool_calls : []) {
    const made = call?.function ?? call;
    const given = typeof made?.arguments === "string" ? made.arguments : JSON.stringify(made?.arguments ?? made);
    parts.push(["call", `${made?.name ?? "call"}(${given})`]);
  }
  const known = new Set(["role", "reasoning", "reasoning_content", "tool_calls"]);
  const rest = Object.entries(message).filter(([name, value]) => !known.has(name) && plain(value));
  if (rest.length) parts.push(["call", JSON.stringify(Object.fromEntries(rest), null, 1)]);
  return parts;
}

const valueText = (value) => (typeof value === "number" && !Number.isInteger(value) ? short(value)
  : typeof value === "string" ? value : JSON.stringify(value));

/** Small facts about a rollout, the telling ones first. */
function facts(cell, { whole = false, run = null } = {}) {
  const made = [];
  const add = (text, kind, title) => made.push(h("span", { class: kind, title }, visible(text)));
  if (run) add(run, `run-${run.toLowerCase()}`);
  add(`#${cell.choice}`, "dim");
  for (const [name, value] of Object.entries(cell.sweep ?? {})) {
    add(`${name === "model" ? "" : `${name} `}${cut(valueText(value), 0, 40)}`, "key", name);
  }
  if (cell.cause) add(cell.cause, "bad");
  if (cell.status) add(`HTTP ${cell.status}`, "dim");
  for (const [name, value] of Object.entries(cell.hook ?? {})) {
    if (value === null || (typeof value === "object" && !whole)) continue;
    add(`${name} ${cut(valueText(value), 0, whole ? 4000 : 40)}`, "score");
  }
  if (cell.finish_reason && !PLAIN_ENDS.has(cell.finish_reason)) add(cell.finish_reason, "warn", "finish reason");
  else if (whole && cell.finish_reason) add(cell.finish_reason, "dim", "finish reason");
  const length = cell.text?.length;
  if (length !== undefined) add(whole ? counted(length, "character") : count(length), "dim", "characters");
  if (whole && cell.tokens) add(counted(cell.tokens, "token"), "dim");
  if (cell.provider_s) add(`${short(cell.provider_s)} s`, "dim", "at the provider");
  if (cell.attempts > 1) add(`${cell.attempts} attempts`, "dim");
  if (cell.tries > 1) add(`${cell.tries} tries`, "dim");
  if (cell.model && !cell.sweep?.model) add(cell.model, "dim model", "model");
  return h("div", { class: "facts" }, made);
}

/** The same rollout in the other run, if it is there. */
const partner = ({ cells }, index) => cells.find((each, place) => place !== index
  && each.choice === cells[index].choice && each.sweep_index === cells[index].sweep_index);

/** The cells of two runs as pairs, with a word where one of them is missing. `runOf(index)` is "A" or "B". */
function paired(group, cells, runOf) {
  const gone = (run) => h("div", { class: "cell gone" },
    h("div", { class: "facts" }, h("span", { class: `run-${run.toLowerCase()}` }, run)),
    h("div", { class: "text none" }, `not in ${run}`));
  const pairs = [];
  for (const [index, cell] of cells.entries()) {
    const other = partner(group, index);
    if (other && other === group.cells[index - 1]) continue;
    const own = runOf(index);
    const both = other ? [cell, cells[index + 1]] : own === "A" ? [cell, gone("B")] : [gone("A"), cell];
    pairs.push(h("div", { class: "pair" }, both));
  }
  return pairs;
}

const cellClass = (cell, matches) => `cell${cell.cause ? " failed" : ""}${matches ? "" : " aside"}`;

/** A cell of the list: the start of the text, or what stands around the place that was searched for. */
function shortCell(cell, { needle, matches, run, other }) {
  const element = h("div", { class: cellClass(cell, matches) }, facts(cell, { run }));
  if (cell.cause) {
    for (const [kind, text] of [["text", cell.error], ["reasoning", cell.refused]]) {
      if (text) element.append(h("div", { class: kind, dir: "auto" }, marked(cut(text, 0, SHORT), needle)));
    }
    return element;
  }
  if (other && other.text !== undefined && !needle) {
    const same = commonStart(cell.text, other.text);
    const start = same > 160 && same < Math.max(cell.text.length, other.text.length) ? same - 80 : 0;
    const text = differences(cut(cell.text, start, SHORT), cut(other.text, start, SHORT), run);
    if (start) text.prepend("… ");
    element.append(text);
    return element;
  }
  for (const [kind, text] of textParts(cell)) {
    const at = needle ? text.search(pattern(needle)) : -1;
    const start = at > 160 ? at - 80 : 0;
    element.append(h("div", { class: kind, dir: "auto" }, start ? "… " : "", marked(cut(text, start, SHORT), needle)));
  }
  if (element.childElementCount === 1) element.append(h("div", { class: "text none" }, "no text"));
  return element;
}

function commonStart(a, b) {
  let length = 0;
  while (length < a.length && length < b.length && a[length] === b[length]) length += 1;
  return length;
}

/** A run's own text, with the words marked that the other run's text does not have. */
function differences(own, other, run) {
  const side = run === "A" ? -1 : 1;
  const parts = side < 0 ? wordDiff(own, other) : wordDiff(other, own);
  return h("div", { class: "text", dir: "auto" }, parts.filter(([kind]) => kind === 0 || kind === side)
    .map(([kind, text]) => (kind === 0 ? visible(text) : h(side < 0 ? "del" : "ins", {}, visible(text)))));
}

/** A text that may be very long: a first piece, and a button for each further one. */
function longText(text, needle, kind = "text") {
  const body = h("div", { class: kind, dir: "auto" });
  let shown = 0;
  const more = h("button", { class: "more", onclick: () => grow() });
  const grow = () => {
    const piece = cut(text, shown, PIECE);
    shown += piece.length || PIECE;
    body.append(...marked(piece, needle));
    const left = text.length - shown;
    more.textContent = `show ${count(Math.min(left, PIECE))} more of ${count(left)} characters`;
    more.hidden = left <= 0;
  };
  grow();
  return more.hidden ? [body] : [body, more];
}

function wholeCell(cell, { needle, matches, run, other }) {
  const element = h("div", { class: `${cellClass(cell, matches)} whole` }, facts(cell, { whole: true, run }));
  if (cell.cause) {
    element.append(...longText(cell.error ?? "", needle));
    if (cell.refused) element.append(...longText(cell.refused, needle, "reasoning"));
  } else if (other && other.text !== undefined && cell.text.length + other.text.length < 4 * PIECE) {
    element.append(differences(cell.text, other.text, run));
  } else {
    for (const [kind, text] of textParts(cell)) element.append(...longText(text, needle, kind));
  }
  if (element.childElementCount === 1) element.append(h("div", { class: "text none" }, "no text"));
  return element;
}

/** A prompt's parts as [role, text]; the role is empty for a plain prompt. */
function promptParts(prompt) {
  if (prompt === null || prompt === undefined) return [];
  if (typeof prompt === "string") return [["", prompt]];
  if (Array.isArray(prompt) && prompt.every((each) => typeof each === "number")) return [["token ids", prompt.join(" ")]];
  if (!Array.isArray(prompt)) return [["", JSON.stringify(prompt, null, 1)]];
  return prompt.map((message) => {
    const content = Array.isArray(message?.content)
      ? message.content.map((part) => part?.text ?? `[${part?.type ?? "part"}]`).join("\n") : message?.content;
    const calls = message?.tool_calls ? JSON.stringify(message.tool_calls, null, 1) : "";
    const text = typeof content === "string" ? content : plain(content);
    return [String(message?.role ?? ""), [text, calls].filter(Boolean).join("\n")];
  });
}
