// Filters, order and counts over the store's arrays. Pure functions.

/** What is asked: words by column (codes), ranges by column ([low, high], null = open), hits of the search, the order. */
const newFilter = () => ({ words: new Map(), ranges: new Map(), hits: null, sort: "input" });

/**
 * Rows that match (1), the groups that hold one, in order, and for each column of words how many rows each word would
 * match with the other filters as they are.
 */
function runQuery(store, filter) {
  const { cells } = store;
  const misses = new Uint8Array(cells);
  const by = new Uint8Array(cells); // the last filter that a row missed
  const conditions = [];
  for (const [key, codes] of filter.words) {
    const own = store.codes(key);
    const wanted = new Uint8Array(256);
    for (const code of codes) wanted[code] = 1;
    conditions.push([key, (row) => wanted[own[row]]]);
  }
  for (const [key, [low, high]] of filter.ranges) {
    const own = store.numbers(key);
    conditions.push([key, (row) => own[row] >= (low ?? -Infinity) && own[row] <= (high ?? Infinity)]);
  }
  if (filter.hits) conditions.push(["", (row) => filter.hits[row]]);
  conditions.forEach(([, holds], place) => {
    for (let row = 0; row < cells; row += 1) {
      if (!holds(row)) {
        misses[row] += 1;
        by[row] = place;
      }
    }
  });
  const matches = misses.map((each) => (each === 0 ? 1 : 0));
  return { matches, ...matching(store, matches, filter.sort), counts: wordCounts(store, conditions, misses, by) };
}

function matching(store, matches, sort) {
  const groups = [];
  let rows = 0;
  let failed = 0;
  for (let group = 0; group < store.groups; group += 1) {
    let any = 0;
    for (let row = store.starts[group]; row < store.starts[group + 1]; row += 1) {
      if (matches[row]) {
        any += 1;
        failed += store.failed[row];
      }
    }
    rows += any;
    if (any) groups.push(group);
  }
  return { groups: sorted(store, groups, matches, sort), rows, failed };
}

/** `sort`: "input", or "KEY:down", "KEY:up", "KEY:spread" by the greatest, smallest or most different of a group's rows. */
function sorted(store, groups, matches, sort) {
  if (sort === "input") return Uint32Array.from(groups);
  const [key, way] = [sort.slice(0, sort.lastIndexOf(":")), sort.slice(sort.lastIndexOf(":") + 1)];
  const own = store.numbers(key);
  const values = new Float64Array(store.groups).fill(-Infinity);
  for (const group of groups) {
    let least = Infinity;
    let most = -Infinity;
    for (let row = store.starts[group]; row < store.starts[group + 1]; row += 1) {
      if (!matches[row] || Number.isNaN(own[row])) continue;
      least = Math.min(least, own[row]);
      most = Math.max(most, own[row]);
    }
    if (most >= least) values[group] = { down: most, up: -least, spread: most - least }[way];
  }
  return Uint32Array.from(groups).sort((a, b) => (values[b] > values[a] ? 1 : values[b] < values[a] ? -1 : a - b));
}

function wordCounts(store, conditions, misses, by) {
  const counts = new Map();
  for (const [key, column] of store.columns) {
    const own = store.codes(key);
    if (!own) continue;
    const found = new Uint32Array(column.words.length + 1);
    const place = conditions.findIndex(([each]) => each === key);
    for (let row = 0; row < own.length; row += 1) {
      if (misses[row] === 0 || (misses[row] === 1 && by[row] === place)) found[own[row]] += 1;
    }
    counts.set(key, found);
  }
  return counts;
}

/** Least, most and counts in `bins` equal parts of a column of numbers; null where there are fewer than two values. */
function spread(numbers, bins) {
  let least = Infinity;
  let most = -Infinity;
  for (const each of numbers) {
    if (each < least) least = each;
    if (each > most) most = each;
  }
  if (!(most > least)) return null;
  const found = new Uint32Array(bins);
  for (const each of numbers) {
    if (!Number.isNaN(each)) found[Math.min(bins - 1, Math.floor(((each - least) / (most - least)) * bins))] += 1;
  }
  return { least, most, found };
}

/** Figures of the matching rows by word of a column: rows, failed, and mean or median of columns of numbers. */
function compareBy(store, key, matches) {
  const own = store.codes(key);
  const rows = store.columns.get(key).words.map(() => []);
  for (let row = 0; row < own.length; row += 1) if (matches[row] && own[row]) rows[own[row] - 1].push(row);
  return rows.map((mine, place) => {
    const values = (name) =>
      Float64Array.from(mine, (row) => store.numbers(name)[row]).filter((each) => !Number.isNaN(each));
    return {
      word: store.columns.get(key).words[place],
      rows: mine.length,
      failed: mine.reduce((sum, row) => sum + store.failed[row], 0),
      mean: (name) => { const all = values(name); return all.length ? all.reduce((a, b) => a + b) / all.length : NaN; },
      median: (name) => { const all = values(name).sort(); return all.length ? all[all.length >> 1] : NaN; },
      share: (name, word) => {
        const code = store.columns.get(name).words.indexOf(word) + 1;
        const sampled = mine.filter((row) => !store.failed[row]);
        return sampled.length ? sampled.filter((row) => store.codes(name)[row] === code).length / sampled.length : NaN;
      },
    };
  }).filter((each) => each.rows);
}
