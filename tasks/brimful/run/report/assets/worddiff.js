// Differences of two texts by words, after Myers.

const MOST_WORDS = 20_000;
const MOST_EDITS = 1_500;

/** Parts [kind, text]: kind 0 is in both, -1 in `a` only, 1 in `b` only. Texts that differ too much differ as a whole. */
function wordDiff(a, b) {
  if (a === b) return a ? [[0, a]] : [];
  const words = (text) => text.match(/\s+|[\p{L}\p{N}\p{M}_]+|[^]/gu) ?? [];
  const [from, to] = [words(a), words(b)];
  let head = 0;
  while (head < from.length && head < to.length && from[head] === to[head]) head += 1;
  let tail = 0;
  while (tail < from.length - head && tail < to.length - head && from.at(-1 - tail) === to.at(-1 - tail)) tail += 1;
  const middle = [from.slice(head, from.length - tail), to.slice(head, to.length - tail)];
  return joined([
    ...from.slice(0, head).map((word) => [0, word]),
    ...edits(...middle),
    ...from.slice(from.length - tail).map((word) => [0, word]),
  ]);
}

function edits(from, to) {
  const whole = () => [...from.map((word) => [-1, word]), ...to.map((word) => [1, word])];
  if (!from.length || !to.length || from.length + to.length > MOST_WORDS) return whole();
  const most = Math.min(from.length + to.length, MOST_EDITS);
  const furthest = new Int32Array(2 * most + 3);
  const at = (diagonal) => diagonal + most + 1;
  const trace = [];
  for (let depth = 0; depth <= most; depth += 1) {
    for (let k = -depth; k <= depth; k += 2) {
      const down = k === -depth || (k !== depth && furthest[at(k - 1)] < furthest[at(k + 1)]);
      let x = down ? furthest[at(k + 1)] : furthest[at(k - 1)] + 1;
      while (x < from.length && x - k < to.length && from[x] === to[x - k]) x += 1;
      furthest[at(k)] = x;
      if (x >= from.length && x - k >= to.length) return walkedBack(from, to, trace, depth);
    }
    trace.push(furthest.slice(at(-depth - 1), at(depth + 1) + 1));
  }
  return whole();
}

function walkedBack(from, to, trace, depth) {
  const parts = [];
  let [x, y] = [from.length, to.length];
  for (let step = depth; step > 0; step -= 1) {
    const before = trace[step - 1];
    const value = (diagonal) => before[diagonal + step];
    const k = x - y;
    const down = k === -step || (k !== step && value(k - 1) < value(k + 1));
    const startX = down ? value(k + 1) : value(k - 1);
    const startY = startX - (down ? k + 1 : k - 1);
    while (x > startX && y > startY && from[x - 1] === to[y - 1]) {
      parts.push([0, from[x - 1]]);
      x -= 1;
      y -= 1;
    }
    if (down) parts.push([1, to[--y]]);
    else parts.push([-1, from[--x]]);
  }
  while (x > 0 && y > 0) {
    parts.push([0, from[--x]]);
    y -= 1;
  }
  return parts.reverse();
}

function joined(parts) {
  const found = [];
  for (const [kind, text] of parts) {
    if (found.length && found.at(-1)[0] === kind) found.at(-1)[1] += text;
    else found.push([kind, text]);
  }
  return found;
}
