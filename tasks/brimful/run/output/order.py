"""A ledger in the input's order, with bounded memory: sorted in runs of limited size, which are merged from disk."""

from __future__ import annotations

import contextlib
import heapq
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from brimful.run.output.records import load_line
from brimful.runtime.atomic import atomic_write

RUN_BYTES = 32 * 1024 * 1024
"""What is sorted in memory at a time."""
_FAN = 64  # files merged at once


class _Keyed(NamedTuple):
    line: int
    prompt: int
    choice: int
    data: bytes


def is_ordered(path: Path) -> bool:
    """Whether it is in the input's order already."""
    last = (0, 0, 0)
    for keyed in _keyed(path):
        if keyed[:3] < last:
            return False
        last = keyed[:3]
    return True


def ordered(path: Path, run_bytes: int = RUN_BYTES) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Every record as its bytes and as an object, by (line, prompt, choice)."""
    for data in _sorted_lines(path, run_bytes):
        yield data, load_line(data, str(path))


def write_ordered(path: Path, run_bytes: int = RUN_BYTES) -> None:
    """Put the file itself in order. Raises FleetError; the file is untouched then."""
    with atomic_write(path) as file:
        file.writelines(_sorted_lines(path, run_bytes))


def _sorted_lines(path: Path, run_bytes: int) -> Iterator[bytes]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".brimful-sort-", dir=path.parent)))
        runs: list[Path] = []
        held: list[_Keyed] = []
        size = 0
        for keyed in _keyed(path):
            held.append(keyed)
            size += len(keyed.data) + 200
            if size > run_bytes:
                runs.append(_spill(sorted(held), folder, len(runs)))
                held, size = [], 0
        held.sort()
        if not runs:
            yield from (keyed.data for keyed in held)
            return
        runs.append(_spill(held, folder, len(runs)))
        del held
        number = len(runs)
        while len(runs) > _FAN:
            merged = _spill(heapq.merge(*map(_keyed, runs[:_FAN])), folder, number)
            for done in runs[:_FAN]:
                done.unlink()
            runs, number = [*runs[_FAN:], merged], number + 1
        yield from (keyed.data for keyed in heapq.merge(*map(_keyed, runs)))


def _spill(keyed: Iterable[_Keyed], folder: Path, number: int) -> Path:
    path = folder / f"{number}.jsonl"
    with path.open("wb", buffering=1 << 18) as out:
        out.writelines(each.data for each in keyed)
    return path


def _keyed(path: Path) -> Iterator[_Keyed]:
    with path.open("rb") as file:
        yield from _keys(file, path)


def _keys(file: IO[bytes], path: Path) -> Iterator[_Keyed]:
    for number, data in enumerate(file, 1):
        record = load_line(data, f"{path}:{number}")
        yield _Keyed(record["line"], record["prompt_index"], record["choice_index"], data)
