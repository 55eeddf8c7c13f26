"""A rollouts file in the input's order, with bounded memory: an external merge sort."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from brimful.run.output.records import load_line
from brimful.runtime.atomic import atomic_write

CHUNK_BYTES = 32 * 1024 * 1024
"""Sorted in memory at a time."""
_FAN_IN = 64  # files merged at once


class _Keyed(NamedTuple):
    line: int
    combination: int
    prompt: int
    choice: int
    data: bytes


def is_ordered(path: Path) -> bool:
    return all(one[:4] <= other[:4] for one, other in pairwise(_keyed(path)))


def ordered(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, by (line, sweep_index, prompt_index, choice_index)."""
    return (load_line(data, str(path)) for data in _sorted_lines(path, CHUNK_BYTES))


def write_ordered(path: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Put the file itself in order. Raises FleetError, and leaves the file unchanged then."""
    with atomic_write(path) as file:
        file.writelines(_sorted_lines(path, chunk_bytes))


def _sorted_lines(path: Path, chunk_bytes: int) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory(prefix=".brimful-sort-", dir=path.parent) as name:
        folder = Path(name)
        files: list[Path] = []
        held: list[_Keyed] = []
        size = 0
        for keyed in _keyed(path):
            held.append(keyed)
            size += len(keyed.data) + 200  # about what the objects around it take
            if size > chunk_bytes:
                files.append(_write(sorted(held), folder / str(len(files))))
                held, size = [], 0
        held.sort()
        made = len(files)
        while len(files) > _FAN_IN:
            merged = _write(heapq.merge(*map(_keyed, files[:_FAN_IN])), folder / str(made))
            for done in files[:_FAN_IN]:
                done.unlink()
            files, made = [*files[_FAN_IN:], merged], made + 1
        yield from (keyed.data for keyed in heapq.merge(*map(_keyed, files), held))


def _write(lines: Iterable[_Keyed], path: Path) -> Path:
    with path.open("wb", buffering=1 << 18) as file:
        file.writelines(each.data for each in lines)
    return path


def _keyed(path: Path) -> Iterator[_Keyed]:
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            record = load_line(data, f"{path}:{number}")
            yield _Keyed(
                record["line"], record.get("sweep_index") or 0, record["prompt_index"], record["choice_index"], data
            )
