"""Ids of input lines: every duplicate is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.run.input.ids import Ids


@given(st.lists(st.none() | st.integers(1, 30).map(str) | st.sampled_from(["a", "b", "007", "-1"]), max_size=40))
def test_ids_find_every_duplicate(stated: list[str | None]) -> None:
    ids = Ids()
    seen: dict[str, int] = {}
    for line, id in enumerate(stated, 1):
        effective = str(line) if id is None else id
        found = ids.add_default(line) if id is None else ids.add(id, line)
        assert found == seen.get(effective)
        seen.setdefault(effective, line)


def test_ids_grow() -> None:
    ids = Ids()
    assert all(ids.add(f"id-{line}", line) is None for line in range(1, 5000))
    assert ids.add("id-77", 9999) == 77
