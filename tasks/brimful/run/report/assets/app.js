// Puts the page together: data, search, filters, list, reader, keys.

const KEYS = [
  ["/", "search"], ["j, ↓", "next prompt"], ["k, ↑", "previous prompt"], ["Enter", "open it"],
  ["Home, End", "first, last"],
  ["m", "fixed-width letters, in an open prompt"], ["Esc", "close, or clear the search"],
  ["1, 2, 3", "rollouts, compare, figures"],
  ["?", "these keys"],
];

const VIEWS = ["rollouts", "compare", "figures"];
const SHOWN_CELLS = 24; // rollouts of a prompt in the list

class App {
  constructor(store, texts) {
    this.store = store;
    this.texts = texts;
    this.filter = newFilter();
    this.needle = "";
    this.asked = 0;
    this.search = find("#search");
    this.list = new VirtualList(find("#list"), (place) => this.#row(place), (place) => this.#open(place));
    this.facets = new Facets(find("#facets"), store, this.filter, () => this.#query());
    this.compare = new Compare(find("#compare"), store);
    this.reader = new Reader(find("#reader"), store, {
      step: (by) => this.#open(this.list.active + by),
      closed: () => find("#list").focus(),
    });
    this.#sizes();
    this.#sorts();
    this.#listen();
    const note = find("#note");
    note.textContent = store.meta.note;
    note.hidden = !store.meta.note;
    find("#filter").hidden = this.facets.empty;
    find("#rollouts").classList.toggle("bare", this.facets.empty);
    find("#tab-compare").hidden = !this.compare.keys.length;
    this.#query();
  }

  /** Rows are as high as most rollouts need. */
  #sizes() {
    const lengths = this.store.numbers("chars")?.filter((each) => !Number.isNaN(each)).sort();
    const usual = lengths?.length ? lengths[Math.floor(lengths.length * 0.75)] : 300;
    const classes = find("#list").classList;
    classes.add(usual <= 60 ? "low" : usual <= 240 ? "middle" : "high");
    classes.toggle("pairs", this.store.columns.has("run"));
    classes.toggle("swept", [...this.store.columns.keys()].some((key) => key.startsWith("sweep.")));
  }

  #sorts() {
    const options = [["input", "input order"]];
    const two = (key, down, up) => { if (this.store.numbers(key)) options.push([`${key}:down`, down], [`${key}:up`, up]); };
    two("chars", "longest first", "shortest first");
    two("seconds", "slowest first", "fastest first");
    for (const { key, numeric } of this.store.columns.values()) {
      if (!numeric || !/^(hook|sweep|input)\./.test(key)) continue;
      two(key, `${visible(nameOf(key))}, high to low`, `${visible(nameOf(key))}, low to high`);
      if (key.startsWith("hook.")) options.push([`${key}:spread`, `${visible(nameOf(key))}, most different`]);
    }
    if (this.store.numbers("attempts")?.some((each) => each > 1)) options.push(["attempts:down", "most attempts"]);
    find("#sort").append(...options.map(([value, name]) => h("option", { value }, name)));
  }

  #listen() {
    let waiting = 0;
    this.search.addEventListener("input", () => {
      clearTimeout(waiting);
      if (this.store.meta.served) waiting = setTimeout(() => this.#find(), 200);
      else this.#find();
    });
    find("#sort").addEventListener("change", (event) => { this.filter.sort = event.target.value; this.#query(); });
    find("#filter").addEventListener("click", () => this.#showFacets());
    find("#facets").prepend(h("button", { class: "done", onclick: () => this.#showFacets(false) }, "Done"));
    for (const name of VIEWS) find(`#tab-${name}`).addEventListener("click", () => this.#tab(name));
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  #showFacets(on = !find("#facets").classList.contains("shown")) {
    find("#facets").classList.toggle("shown", on);
    find("#filter").setAttribute("aria-expanded", String(on));
  }

  #tab(name) {
    for (const each of VIEWS) {
      find(`#${each}`).hidden = each !== name;
      find(`#tab-${each}`).setAttribute("aria-selected", String(each === name));
    }
    if (name === "compare") this.compare.draw(this.result);
    if (name === "rollouts") this.list.refresh();
  }

  async #find() {
    const began = performance.now();
    const needle = this.search.value.toLowerCase();
    const asked = ++this.asked;
    const slow = setTimeout(() => { find("#count").textContent = "searching…"; }, 150);
    const hits = needle ? await this.texts.search(needle, () => asked !== this.asked) : null;
    clearTimeout(slow);
    if (asked !== this.asked) return;
    this.needle = this.search.value;
    this.filter.hits = hits;
    this.#query();
    await painted();
    document.documentElement.dataset.searchMs = (performance.now() - began).toFixed(1);
  }

  #query() {
    this.result = runQuery(this.store, this.filter);
    this.list.active = -1;
    this.list.set(this.result.groups.length);
    this.facets.draw(this.result.counts);
    this.#count();
  }

  #count() {
    const { rows, failed, groups } = this.result;
    const parts = [counted(groups.length, "prompt"), counted(rows - failed, "rollout")];
    if (failed) parts.push(`${count(failed)} failed`);
    find("#count").textContent = groups.length ? parts.join(" · ") : "nothing matches";
    const active = this.filter.words.size + this.filter.ranges.size;
    find("#filter").textContent = active ? `Filter (${active})` : "Filter";
  }

  #row(place) {
    const number = this.result.groups[place];
    const group = this.texts.peek(number);
    const row = h("article", { class: "row", tabindex: -1 });
    if (!group) {
      row.append(h("div", { class: "prompt dim" }, "…"));
      this.texts.want(number).then(() => { if (this.result.groups[place] === number) this.list.renew(place); });
      return row;
    }
    const parts = promptParts(group.prompt);
    const head = parts.length > 1 ? parts.filter(([role]) => role !== "system").slice(-1) : parts;
    const columns = Object.entries(group.input ?? {}).map(([name, value]) => `${name} ${cut(valueText(value), 0, 60)}`);
    row.append(
      h("div", { class: "prompt" },
        h("div", { class: "id" }, marked(group.id, this.needle), group.prompt_index ? ` · ${group.prompt_index}` : ""),
        head.map(([, text]) => h("div", { class: "words", dir: "auto" }, this.#start(text))),
        columns.length ? h("div", { class: "columns" }, marked(columns.join(" · "), this.needle)) : ""),
      h("div", { class: "answers" }, this.#answers(number, group)));
    return row;
  }

  #start(text) {
    const at = this.needle ? text.search(pattern(this.needle)) : -1;
    const start = at > 200 ? at - 60 : 0;
    return [start ? "… " : "", ...marked(cut(text, start, 500), this.needle)];
  }

  #answers(number, group) {
    const first = this.store.starts[number];
    const runs = this.store.columns.get("run");
    const cells = group.cells.slice(0, SHOWN_CELLS).map((cell, index) => {
      const run = runs ? runs.words[this.store.codes("run")[first + index] - 1] : null;
      const other = runs ? partner(group, index) : null;
      return shortCell(cell, { needle: this.needle, matches: this.result.matches[first + index], run, other });
    });
    const shown = runs ? paired(group, cells, (index) => runs.words[this.store.codes("run")[first + index] - 1]) : cells;
    const more = group.cells.length - cells.length;
    return more > 0 ? [...shown, h("div", { class: "cell rest" }, `and ${count(more)} more`)] : shown;
  }

  async #open(place) {
    if (place < 0 || place >= this.result.groups.length) return;
    const { groups, matches } = this.result;
    this.list.activate(place);
    const group = await this.texts.want(groups[place]);
    this.reader.draw(groups[place], group, { place, length: groups.length, needle: this.needle, matches });
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.reader.open) return;
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && event.target === this.search) {
      this.search.value = "";
      this.#find();
      find("#list").focus();
      return;
    }
    if (event.key === "Enter" && event.target === this.search) {
      find("#list").focus();
      this.list.activate(0);
      return;
    }
    if (typing && !(event.key === "ArrowDown" && event.target === this.search)) return;
    const { active } = this.list;
    const acts = {
      "/": () => { this.#tab("rollouts"); this.search.focus(); this.search.select(); },
      "?": () => this.#help(),
      1: () => this.#tab("rollouts"),
      2: () => find("#tab-compare").hidden || this.#tab("compare"),
      3: () => this.#tab("figures"),
      j: () => this.list.activate(active + 1), ArrowDown: () => this.list.activate(active + 1),
      k: () => this.list.activate(active - 1), ArrowUp: () => this.list.activate(active - 1),
      Home: () => this.list.activate(0), End: () => this.list.activate(this.list.length - 1),
      Enter: () => event.target.closest("button") || this.#open(Math.max(0, active)),
      Escape: () => this.#showFacets(false),
    };
    const act = acts[event.key];
    if (!act || (event.key === "Enter" && event.target.closest("button"))) return;
    if (["j", "k", "ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) find("#list").focus({ preventScroll: true });
    act();
    event.preventDefault();
  }

  #help() {
    const dialog = find("#help");
    dialog.replaceChildren(h("h2", {}, "Keys"),
      h("dl", {}, KEYS.map(([key, what]) => [h("dt", {}, key), h("dd", {}, what)])),
      h("button", { onclick: () => dialog.close() }, "Close"));
    dialog.showModal();
  }
}

async function start() {
  const meta = await inflateJson(find("#meta").textContent);
  const buffer = meta.served ? await (await fetch("columns")).arrayBuffer() : await inflate(find("#columns").textContent);
  const store = new Store(meta, buffer);
  const texts = meta.served ? new ServedTexts(store) : new EmbeddedTexts(store);
  new App(store, texts);
  document.documentElement.dataset.ready = performance.now().toFixed(0);
  if (!meta.served) {
    await texts.all();
    document.documentElement.dataset.loaded = performance.now().toFixed(0);
  }
}

function complain(error) {
  find("#note").textContent = error instanceof TypeError && /fetch/i.test(error.message)
    ? "brimful report --serve has ended: start it again, and open the address that it prints."
    : `Something went wrong on this page: ${error?.message ?? error}`;
  find("#note").hidden = false;
}

addEventListener("unhandledrejection", (event) => complain(event.reason));
start().catch(complain);
