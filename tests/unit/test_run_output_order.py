"""A rollouts file in the input's order, with bounded memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from brimful.run.output import order
from brimful.run.output.order import is_ordered, ordered, write_ordered
from brimful.run.output.records import dump_line
from support.runs import records


def write(path: Path, *places: tuple[int, ...], bytes_each: int = 0) -> Path:
    """``places``: line, prompt and choice of each record, and the combination of a sweep."""
    with path.open("wb") as file:
        for line, prompt, choice, *sweep in places:
            record: dict[str, Any] = {"line": line, "prompt_index": prompt, "choice_index": choice, "text": "x\u2028"}
            if sweep:
                record["sweep_index"] = sweep[0]
            data = dump_line(record)
            file.write(data[:-2] + b" " * (bytes_each - len(data)) + data[-2:])
    return path


def places_of(found: Any) -> list[tuple[int, int, int]]:
    return [(record["line"], record["prompt_index"], record["choice_index"]) for record in found]


def test_a_rollouts_file_is_sorted_with_bounded_memory(tmp_path: Path) -> None:
    places = [(line, prompt, choice) for line in range(1, 200) for prompt in range(2) for choice in range(2)]
    random.Random(7).shuffle(places)
    path = write(tmp_path / "out.jsonl", *places)
    assert not is_ordered(path)
    write_ordered(path, chunk_bytes=1000)  # some 200 chunks, merged in two rounds
    assert is_ordered(path)
    assert places_of(records(path)) == sorted(places)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_as_much_is_sorted_in_memory_as_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each record also what its objects take, about 200 bytes."""
    places = [(line, 0, 0) for line in range(12, 0, -1)]
    path = write(tmp_path / "out.jsonl", *places, bytes_each=100)

    def chunks() -> list[int]:
        """Bytes of the files in which chunks wait while the records are read."""
        reading = ordered(path)
        assert places_of([next(reading)]) == [(1, 0, 0)]
        sizes = [chunk.stat().st_size for chunk in sorted(tmp_path.glob(".brimful-sort-*/*"))]
        assert places_of(reading) == sorted(places)[1:]
        return sizes

    assert chunks() == []
    monkeypatch.setattr(order, "CHUNK_BYTES", 4 * 300)
    assert chunks() == [500, 500]


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        (((1, 0, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)), True),
        (((1, 0, 1), (1, 0, 0)), False),
        (((1, 1, 0), (1, 0, 1)), False),
        (((2, 0, 0), (1, 1, 1)), False),
        (((1, 1, 1, 0), (1, 0, 0, 1), (2, 0, 0)), True),
        (((1, 0, 0, 1), (1, 1, 1, 0)), False),
    ],
)
def test_records_are_ordered_by_line_combination_prompt_and_choice(
    tmp_path: Path, places: tuple[tuple[int, ...], ...], wanted: bool
) -> None:
    assert is_ordered(write(tmp_path / "out.jsonl", *places)) is wanted
