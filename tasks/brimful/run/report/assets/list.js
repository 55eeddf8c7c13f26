// A list of rows of equal height that keeps only those on screen as elements, however many there are.

const TALLEST = 12_000_000; // pixels that every browser can scroll
const SPARE = 3; // rows beyond each edge

class VirtualList {
  /** `render(place)` makes the row's element; `show(place)` opens it. */
  constructor(box, render, show) {
    this.box = box;
    this.render = render;
    this.show = show;
    this.length = 0;
    this.active = -1;
    this.rows = new Map();
    this.content = h("div", { class: "content", role: "list" });
    this.box.append(this.content);
    this.box.addEventListener("scroll", () => this.#later());
    new ResizeObserver(() => this.refresh()).observe(box);
    this.content.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row && !getSelection().toString() && !event.target.closest("button")) this.show(Number(row.dataset.place));
    });
  }

  get height() { return this.rowHeight ?? 160; }

  get #whole() { return this.length * this.height; }

  /** Pixels of the list that one pixel of the scroll bar stands for. */
  #scale(view) { return this.#whole <= TALLEST ? 1 : (this.#whole - view) / (TALLEST - view); }

  set(length) {
    this.length = length;
    this.active = Math.min(this.active, length - 1);
    this.box.scrollTop = 0;
    this.refresh();
  }

  /** Make all rows again. */
  refresh() {
    this.rowHeight = parseFloat(getComputedStyle(this.box).getPropertyValue("--row"));
    this.content.style.height = `${Math.min(this.#whole, TALLEST)}px`;
    this.content.replaceChildren();
    this.rows.clear();
    this.#draw(0); // what is on screen; the rest follows once that is painted
    requestAnimationFrame(() => this.#later());
  }

  /** Make one row again, if it is on screen. */
  renew(place) {
    this.rows.get(place)?.remove();
    this.rows.delete(place);
    this.#later();
  }

  activate(place, { scroll = true } = {}) {
    if (!this.length) return;
    const before = this.active;
    this.active = Math.max(0, Math.min(place, this.length - 1));
    for (const each of [before, this.active]) this.#mark(each);
    if (!scroll) return;
    const view = this.box.clientHeight;
    const scale = this.#scale(view);
    const top = this.box.scrollTop * scale;
    const at = this.active * this.height;
    if (at < top) this.box.scrollTop = at / scale;
    else if (at + this.height > top + view) this.box.scrollTop = (at + this.height - view) / scale;
    this.#draw();
  }

  #mark(place) {
    const row = this.rows.get(place);
    row?.classList.toggle("active", place === this.active);
    row?.setAttribute("aria-current", String(place === this.active));
  }

  #later() {
    this.drawing ??= requestAnimationFrame(() => {
      this.drawing = null;
      this.#draw();
    });
  }

  #draw(spare = SPARE) {
    // Measured once: reading after a change makes the browser lay out the page again.
    const [bar, view] = [this.box.scrollTop, this.box.clientHeight];
    const top = bar * this.#scale(view);
    const from = Math.max(0, Math.floor(top / this.height) - spare);
    const to = Math.min(this.length, Math.ceil((top + view) / this.height) + spare);
    for (const [place, row] of this.rows) {
      if (place < from || place >= to) {
        row.remove();
        this.rows.delete(place);
      }
    }
    const added = [];
    for (let place = from; place < to; place += 1) {
      let row = this.rows.get(place);
      if (!row) {
        row = this.render(place);
        row.dataset.place = place;
        row.setAttribute("role", "listitem");
        row.setAttribute("aria-setsize", this.length);
        row.setAttribute("aria-posinset", place + 1);
        this.rows.set(place, row);
        this.#mark(place);
        added.push(row);
      }
      row.style.transform = `translateY(${place * this.height - top + bar}px)`;
    }
    this.content.append(...added);
  }
}
