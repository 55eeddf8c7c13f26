// The table that compares models, settings of a sweep, or values of a column, over the rows that match the filters.

const COMPARED = 60; // words of a column

class Compare {
  constructor(box, store) {
    this.box = box;
    this.store = store;
    this.keys = [...store.columns.values()].filter(({ key, words }) => words && words.length <= COMPARED
      && !["state", "finish", "cause", "change", "attempts", "tries", "chars", "tokens", "seconds"].includes(key)
      && (words.length > 1 || key === "model") && !(key === "model" && store.columns.has("sweep.model"))).map(({ key }) => key)
      .sort((a, b) => this.#rank(a) - this.#rank(b));
    this.key = this.keys[0];
  }

  #rank(key) {
    const group = key.includes(".") ? key.slice(0, key.indexOf(".")) : key;
    if (group === "model") return this.store.columns.get("model").words?.length > 1 ? 1 : 9;
    return { run: 0, sweep: 2, input: 3, hook: 4 }[group] ?? 5;
  }

  draw({ matches, rows, failed }) {
    if (!this.keys.length) {
      this.box.replaceChildren(h("p", { class: "dim" }, "There is nothing to compare by."));
      return;
    }
    const choice = h("select", { onchange: (event) => { this.key = event.target.value; this.draw({ matches, rows, failed }); } },
      this.keys.map((key) => h("option", { value: key, selected: key === this.key }, visible(nameOf(key)))));
    this.box.replaceChildren(
      h("div", { class: "toolbar" }, h("label", { class: "sort" }, h("span", {}, "Compare by"), " ", choice),
        h("span", { class: "dim" }, `over ${counted(rows - failed, "rollout")} that match the filters`)),
      this.#table(matches));
  }

  #table(matches) {
    const { store } = this;
    const scores = [...store.columns.values()].filter(({ key, numeric }) => numeric && key.startsWith("hook."));
    const found = compareBy(store, this.key, matches);
    const truncated = store.columns.get("finish")?.words.includes("length");
    const percent = (share) => (Number.isNaN(share) ? "–" : `${trim(100 * share)} %`);
    const measure = (name, key, text, value) => (store.numbers(key) ? [[name, text, value]] : []);
    const columns = [
      ["rollouts", (each) => count(each.rows - each.failed)],
      ...(store.failed.includes(1) ? [["failed", (each) => count(each.failed)]] : []),
      ...scores.flatMap(({ key }) =>
        measure(`mean ${nameOf(key)}`, key, (each) => short(each.mean(key)), (each) => each.mean(key))),
      ...measure("median length", "chars", (each) => short(each.median("chars"))),
      ...measure("median tokens", "tokens", (each) => short(each.median("tokens"))),
      ...measure("median time", "seconds", (each) => `${short(each.median("seconds"))} s`),
      ...(truncated ? [["truncated", (each) => percent(each.share("finish", "length"))]] : []),
    ];
    const numeric = store.columns.get(this.key).numeric;
    found.sort((a, b) => (numeric ? Number(a.word) - Number(b.word) : b.rows - a.rows));
    const head = columns.map(([name]) => h("td", {}, visible(name)));
    const cell = (each, [, text, value]) => h("td", {}, text(each), value ? this.#bar(value(each), found.map(value)) : "");
    return h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, visible(nameOf(this.key))), head)),
      h("tbody", {}, found.map((each) =>
        h("tr", {}, h("th", {}, visible(each.word) || "(empty)"), columns.map((column) => cell(each, column)))))));
  }

  #bar(value, all) {
    const most = Math.max(...all.filter((each) => !Number.isNaN(each)), 0);
    return svg("svg", { class: "bar", viewBox: "0 0 100 2", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { width: most > 0 && value > 0 ? (100 * value) / most : 0, height: 2 }));
  }
}
