"""Ids and sets of input lines: every duplicate is found, every line is in its set once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.run.input.ids import Ids
from brimful.run.input.line_sets import LineSet, Ranges


@given(st.lists(st.none() | st.integers(1, 30).map(str) | st.sampled_from(["a", "b", "007", "-1"]), max_size=40))
def test_ids_find_every_duplicate(stated: list[str | None]) -> None:
    ids = Ids()
    seen: dict[str, int] = {}
    for line, id in enumerate(stated, 1):
        effective = str(line) if id is None else id
        found = ids.add_default(line) if id is None else ids.add(id, line)
        assert found == seen.get(effective)
        seen.setdefault(effective, line)


def test_the_table_of_ids_grows() -> None:
    ids = Ids()
    assert all(ids.add(f"id-{line}", line) is None for line in range(1, 5000))
    assert ids.add("id-77", 9999) == 77


@given(st.lists(st.integers(1, 100_000), max_size=60))
def test_a_line_set_holds_what_was_added(lines: list[int]) -> None:
    found = LineSet()
    seen: set[int] = set()
    for line in lines:
        assert found.add(line) is (line not in seen)
        seen.add(line)
    assert len(found) == len(seen)
    assert {line for line in range(100_002) if line in found} == seen


@given(st.sets(st.integers(1, 60)))
def test_ranges_hold_what_was_added(lines: set[int]) -> None:
    ranges = Ranges()
    for line in sorted(lines):
        ranges.add(line)
    again = Ranges(ranges.ranges)
    assert {line for line in range(62) if line in again} == lines
