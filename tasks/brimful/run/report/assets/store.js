// The run's data. `Store` holds a row for each rollout and failure, in typed arrays; the texts come by group, from the
// page itself (`EmbeddedTexts`) or from `brimful report --serve` (`ServedTexts`).

const NAMES = {
  state: "Result", finish: "Finish reason", cause: "Cause of failure", change: "A and B", run: "Run", model: "Model",
  chars: "Length", tokens: "Tokens", seconds: "Time", attempts: "Attempts", tries: "Tries",
};
const UNITS = { chars: "characters", tokens: "sampled", seconds: "at the provider" };

const nameOf = (key) => NAMES[key] ?? key.slice(key.indexOf(".") + 1);

async function inflate(base64) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(base64)
    : Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

const inflateJson = async (base64) => JSON.parse(new TextDecoder().decode(await inflate(base64)));

class Store {
  constructor(meta, buffer) {
    this.meta = meta;
    this.arrays = new Map(meta.arrays.map(({ name, type, at, length }) =>
      [name, new globalThis[`${type}Array`](buffer, at, length)]));
    this.starts = this.arrays.get("starts");
    this.choice = this.arrays.get("choice");
    this.failed = this.arrays.get("failed");
    this.cells = this.choice.length;
    this.groups = this.starts.length - 1;
    this.columns = new Map(meta.columns.map((column) => [column.key, column]));
    if (this.failed.includes(1) && this.failed.includes(0)) {
      this.columns = new Map([["state", { key: "state", words: ["sampled", "failed"], numeric: false }], ...this.columns]);
      this.arrays.set("codes state", this.failed.map((each) => each + 1));
    }
  }

  /** Code of each row's word, 1 = words[0], 0 = no value; undefined where there are too many words. */
  codes(key) { return this.arrays.get(`codes ${key}`); }

  /** Number of each row, NaN = no value; undefined where the values are no numbers. */
  numbers(key) { return this.arrays.get(`numbers ${key}`); }

  /** The group of a row. */
  groupOf(row) {
    let low = 0;
    let high = this.groups;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= row) low = middle;
      else high = middle;
    }
    return low;
  }
}

/** All text of a value: of objects, that of their values. */
function plain(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return Object.values(value).map(plain).filter(Boolean).join("\n");
  return String(value);
}

const textOf = (cell) => [cell.text ?? cell.error ?? "", cell.refused, plain(cell.message), plain(cell.hook)]
  .filter(Boolean).join("\n");

/** A chunk's text in lower case, and the row (or group, as ~group) that each part of it belongs to. */
function haystack(chunk, store) {
  const parts = [];
  const ends = [];
  const owners = [];
  let end = 0;
  const add = (text, owner) => {
    if (!text) return;
    const lower = text.toLowerCase();
    parts.push(lower);
    end += lower.length + 1;
    ends.push(end);
    owners.push(owner);
  };
  chunk.groups.forEach((group, place) => {
    const number = chunk.from + place;
    add([group.id, plain(group.prompt), plain(group.input)].join("\n"), ~number);
    group.cells.forEach((cell, index) => add(textOf(cell), store.starts[number] + index));
  });
  return { text: parts.join("\u0000"), ends, owners };
}

function searchHaystack(hay, needle, hits, store) {
  let from = 0;
  let part = 0;
  for (;;) {
    const at = hay.text.indexOf(needle, from);
    if (at < 0) return;
    while (hay.ends[part] <= at) part += 1;
    const owner = hay.owners[part];
    if (owner < 0) hits.fill(1, store.starts[~owner], store.starts[~owner + 1]);
    else hits[owner] = 1;
    from = hay.ends[part];
  }
}

const SLICE_MS = 12;

class EmbeddedTexts {
  constructor(store) {
    this.store = store;
    this.chunks = [];
    this.whole = null;
    this.collect();
  }

  /** Take the chunks that the browser has parsed by now. */
  collect() {
    const blocks = document.querySelectorAll("script.chunk");
    for (let place = this.chunks.length; place < blocks.length; place += 1) {
      const block = blocks[place];
      const [from, to] = [Number(block.dataset.from), Number(block.dataset.to)];
      this.chunks.push({ from, to, block, groups: null, hay: null, loading: null });
    }
  }

  chunkOf(group) {
    let low = 0;
    let high = this.chunks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.chunks[middle].to <= group) low = middle + 1;
      else high = middle;
    }
    return this.chunks[low];
  }

  /** A group's texts if they are unpacked, else null. */
  peek(group) {
    const chunk = this.chunkOf(group);
    return chunk?.groups ? chunk.groups[group - chunk.from] : null;
  }

  async want(group) {
    if (!this.chunkOf(group)) await this.#parsed();
    await this.#load(this.chunkOf(group));
    return this.peek(group);
  }

  async #parsed() {
    if (document.readyState === "loading") await new Promise((go) => document.addEventListener("DOMContentLoaded", go));
    this.collect();
  }

  #load(chunk) {
    chunk.loading ??= inflateJson(chunk.block.textContent).then((groups) => { chunk.groups = groups; });
    return chunk.loading;
  }

  /** Unpack everything, for the search. */
  all() {
    this.whole ??= (async () => {
      await this.#parsed();
      for (const chunk of this.chunks) {
        await this.#load(chunk);
        chunk.hay ??= haystack(chunk, this.store);
        await breathe();
      }
    })();
    return this.whole;
  }

  /** 1 for each row with `needle` (in lower case) in its text or its prompt's; null if `stale` said so meanwhile. */
  async search(needle, stale) {
    await this.all();
    const hits = new Uint8Array(this.store.cells);
    let began = performance.now();
    for (const chunk of this.chunks) {
      searchHaystack(chunk.hay, needle, hits, this.store);
      if (performance.now() - began > SLICE_MS) {
        await breathe();
        if (stale()) return null;
        began = performance.now();
      }
    }
    return hits;
  }
}

const PAGE = 32; // groups
const PAGES = 200;

class ServedTexts {
  constructor(store) {
    this.store = store;
    this.pages = new Map();
  }

  collect() {}

  peek(group) { return this.pages.get(Math.floor(group / PAGE))?.groups?.[group % PAGE] ?? null; }

  async want(group) {
    const number = Math.floor(group / PAGE);
    const page = this.pages.get(number) ?? { groups: null, loading: null };
    this.pages.delete(number);
    this.pages.set(number, page); // the latest at the end
    if (this.pages.size > PAGES) this.pages.delete(this.pages.keys().next().value);
    page.loading ??= fetch(`groups?from=${number * PAGE}&to=${(number + 1) * PAGE}`)
      .then((answer) => answer.json()).then((groups) => { page.groups = groups; });
    await page.loading;
    return page.groups[group % PAGE];
  }

  async search(needle, stale) {
    const answer = await fetch(`search?q=${encodeURIComponent(needle)}`);
    const rows = new Uint32Array(await answer.arrayBuffer());
    if (stale()) return null;
    const hits = new Uint8Array(this.store.cells);
    for (const row of rows) hits[row] = 1;
    return hits;
  }
}
