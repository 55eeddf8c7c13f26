// One prompt with all its rollouts, in a dialog over the list.

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

class Reader {
  /** `step(by)` goes to another prompt; `closed()` is called when the dialog closes. */
  constructor(dialog, store, { step, closed }) {
    this.dialog = dialog;
    this.store = store;
    this.step = step;
    this.mono = false;
    dialog.addEventListener("close", closed);
    dialog.addEventListener("keydown", (event) => this.#key(event));
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  get open() { return this.dialog.open; }

  draw(number, group, { place, length, needle, matches }) {
    const prompts = promptParts(group.prompt);
    const first = this.store.starts[number];
    const columns = Object.entries(group.input ?? {});
    const several = group.prompt_index ? ` · prompt ${group.prompt_index}` : "";
    this.body = h("div", { class: `cells${this.mono ? " mono" : ""}` }, this.#cells(group, { first, needle, matches }));
    this.dialog.replaceChildren(
      h("div", { class: "bar-top" },
        this.#button("‹", "Previous prompt (k)", () => this.step(-1), { disabled: place === 0 }),
        this.#button("›", "Next prompt (j)", () => this.step(1), { disabled: place === length - 1 }),
        h("h2", {}, visible(group.id)),
        h("span", { class: "dim" }, `line ${count(group.line)}${several} · ${count(place + 1)} of ${count(length)}`),
        this.#button("Aa", "Fixed-width letters (m)", () => this.#toggleMono(), { class: "plain" }),
        this.#button("✕", "Close (Esc)", () => this.dialog.close(), { class: "plain" })),
      h("div", { class: "page", tabindex: -1 },
        h("div", { class: "asked" },
          prompts.map(([role, text]) => h("section", { class: "message" },
            role ? h("h3", {}, visible(role)) : "", longText(text, needle, "prompt"))),
          prompts.length ? "" : h("p", { class: "dim" }, "The prompt is not in the run's files."),
          columns.length ? h("dl", {}, columns.map(([name, value]) => [h("dt", {}, visible(name)),
            h("dd", { dir: "auto" }, longText(asText(value), needle, "value"))])) : ""),
        this.body));
    if (!this.dialog.open) this.dialog.showModal();
    const page = this.dialog.querySelector(".page");
    page.scrollTop = 0;
    page.focus(); // what had the focus is gone, and keys should scroll
  }

  #button(text, title, onclick, more) { return h("button", { title, "aria-label": title, onclick, ...more }, text); }

  #cells(group, { first, needle, matches }) {
    const runs = this.store.codes("run");
    const runOf = (index) => this.store.columns.get("run").words[runs[first + index] - 1];
    const cells = group.cells.map((cell, index) => {
      const run = runs ? runOf(index) : null;
      const other = runs ? partner(group, index) : null;
      return wholeCell(cell, { needle, matches: matches[first + index], run, other });
    });
    return runs ? paired(group, cells, runOf) : cells;
  }

  #toggleMono() {
    this.mono = !this.mono;
    this.body.classList.toggle("mono", this.mono);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 };
    if (event.key in steps) this.step(steps[event.key]);
    else if (event.key === "m") this.#toggleMono();
    else return;
    event.preventDefault();
  }
}
