// The filters: a list of words with counts for each column that has few, a range for each column of numbers.

const SHOWN = 8; // words of a column before "more"
const BINS = 28;

const ORDER = ["state", "finish", "cause", "change", "run", "model", "hook", "sweep", "input"];

/** What a run was made for comes before how it went. */
const rank = (key) => (ORDER.indexOf(key.split(".")[0]) + ORDER.length + 1) % (ORDER.length + 1);

class Facets {
  /** `changed()` is called when `filter` was changed here. */
  constructor(box, store, filter, changed) {
    this.box = box;
    this.store = store;
    this.filter = filter;
    this.changed = changed;
    this.open = new Set();
    this.counts = new Map();
    this.parts = [...store.columns.values()].sort((a, b) => rank(a.key) - rank(b.key)).flatMap((column) => this.#part(column));
    this.clear = h("button", { class: "clear", onclick: () => this.reset() }, "Clear all filters");
    box.append(this.clear, ...this.parts.map((part) => part.element));
  }

  /** The filter of a column; none where its values do not part the rows. */
  #part(column) {
    if (this.#isChoice(column)) {
      const element = h("div");
      return [{ element, draw: () => element.replaceChildren(this.#list(column)), reset: () => {} }];
    }
    const found = column.numeric && (column.words?.length ?? 99) > 3 ? spread(this.store.numbers(column.key), BINS) : null;
    return found ? [this.#range({ ...column, ...found })] : [];
  }

  /** Whether a column's words part the rows: more than one, and not nearly one for each prompt. */
  #isChoice({ key, words, numeric }) {
    if (!words || UNITS[key]) return false;
    if (key === "model" && this.store.columns.has("sweep.model")) return false;
    if (words.length === 1) return !["finish", "model"].includes(key) && this.store.codes(key).includes(0);
    return words.length <= (numeric ? 12 : Math.max(12, this.store.groups / 4));
  }

  get empty() { return !this.parts.length; }

  reset() {
    this.filter.words.clear();
    this.filter.ranges.clear();
    for (const part of this.parts) part.reset();
    this.changed();
  }

  /** Draw with the counts of a query. */
  draw(counts) {
    this.counts = counts;
    this.clear.hidden = !this.filter.words.size && !this.filter.ranges.size;
    for (const part of this.parts) part.draw();
  }

  #list({ key, words, numeric }) {
    const counts = this.counts.get(key);
    const chosen = this.filter.words.get(key) ?? new Set();
    const order = words.map((_, place) => place + 1).sort((a, b) => (numeric
      ? Number(words[a - 1]) - Number(words[b - 1]) || 0 : this.#total(key)[b] - this.#total(key)[a]));
    const most = Math.max(1, ...order.map((code) => counts[code]));
    const all = this.open.has(key) || order.length <= SHOWN + 1;
    return h("fieldset", { class: `facet ${key}` }, h("legend", {}, visible(nameOf(key))),
      order.filter((code, place) => all || place < SHOWN || chosen.has(code)).map((code) =>
        h("label", { class: counts[code] ? "" : "zero", title: words[code - 1] },
          h("input", { type: "checkbox", checked: chosen.has(code),
            onchange: (event) => this.#toggle(key, code, event.target.checked) }),
          h("span", { class: "word" }, visible(words[code - 1]) || "(empty)"),
          h("span", { class: "number" }, count(counts[code])),
          svg("svg", { class: "bar", "aria-hidden": "true", preserveAspectRatio: "none", viewBox: "0 0 100 2" },
            svg("rect", { width: (100 * counts[code]) / most, height: 2 })))),
      all ? "" : h("button", { class: "more", onclick: () => { this.open.add(key); this.draw(this.counts); } },
        `${order.length - SHOWN} more`));
  }

  /** Rows of each word without any filter: they order the list, so that it does not jump. */
  #total(key) {
    this.totals ??= new Map();
    if (!this.totals.has(key)) {
      const found = new Uint32Array(257);
      for (const code of this.store.codes(key)) found[code] += 1;
      this.totals.set(key, found);
    }
    return this.totals.get(key);
  }

  #toggle(key, code, on) {
    const chosen = this.filter.words.get(key) ?? new Set();
    if (on) chosen.add(code);
    else chosen.delete(code);
    if (chosen.size) this.filter.words.set(key, chosen);
    else this.filter.words.delete(key);
    this.changed();
  }

  #range({ key, least, most, found }) {
    const field = (side, name, end) => h("input", {
      type: "number", step: "any", placeholder: String(trim(end)), "aria-label": `${nameOf(key)}: ${name}`,
      onchange: (event) => {
        const range = this.filter.ranges.get(key) ?? [null, null];
        range[side] = event.target.value === "" ? null : Number(event.target.value);
        if (range.every((each) => each === null)) this.filter.ranges.delete(key);
        else this.filter.ranges.set(key, range);
        this.changed();
      },
    });
    const fields = [field(0, "at least", least), field(1, "at most", most)];
    const top = Math.max(...found);
    const bars = [...found].map((each, place) => {
      const height = each ? Math.max(1, (24 * each) / top) : 0;
      return svg("rect", { x: place * 10, y: 24 - height, width: 9, height });
    });
    return {
      element: h("fieldset", { class: "facet range" },
        h("legend", {}, visible(nameOf(key)), UNITS[key] ? h("small", {}, ` ${UNITS[key]}`) : ""),
        svg("svg", { class: "spread", viewBox: `0 0 ${BINS * 10} 24`, preserveAspectRatio: "none", "aria-hidden": "true" },
          bars),
        h("div", { class: "ends" }, fields[0], h("span", {}, "to"), fields[1])),
      draw: () => {
        const [low, high] = this.filter.ranges.get(key) ?? [null, null];
        const edge = (place) => least + ((most - least) * place) / BINS;
        bars.forEach((bar, place) =>
          bar.classList.toggle("out", edge(place + 1) < (low ?? -Infinity) || edge(place) > (high ?? Infinity)));
      },
      reset: () => { for (const each of fields) each.value = ""; },
    };
  }
}
