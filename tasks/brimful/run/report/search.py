"""Searches a run's files for a text, for ``brimful report --serve``. Memory holds one block of a file at a time."""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from brimful.run.report.prompts import Prompts
from brimful.run.report.reading import Run, parse_record
from brimful.runtime.json_bytes import decode

_BLOCK = 4 << 20  # bytes
_UNSEEN = ("role",)
"""Fields of a message that the page does not show as text."""


class Search:
    """Finds rows whose rollout, prompt, id or columns hold a text, whatever the case of its letters."""

    def __init__(self, run: Run, prompts: Prompts) -> None:
        self._cells, self._prompts, self._paths = run.cells, prompts, run.sources
        self._rows = [array("I") for _ in run.sources]
        """By source: its rows in the order of their records; …"""
        for row, source in enumerate(run.cells.source):
            self._rows[source].append(row)
        self._offsets = []
        """… and the offsets of these."""
        for source, rows in enumerate(self._rows):
            self._rows[source] = array("I", sorted(rows, key=run.cells.offset.__getitem__))
            self._offsets.append(array("Q", map(run.cells.offset.__getitem__, self._rows[source])))

    def find(self, needle: str, stale: Callable[[], bool]) -> array[int] | None:
        """The rows that match, in ascending order; None if ``stale`` said meanwhile that nobody waits for them."""
        needle = needle.lower()
        hits = bytearray(len(self._cells))
        for offset, data in _matching(self._prompts.fileno(), needle, stale):
            line = self._prompts.line_at(offset)
            for index, prompt in enumerate(decode(data)):
                if needle in text_of(prompt).lower():
                    self._hit_group(hits, line, index)
        for source, path in enumerate(self._paths):
            if not path.exists():
                continue
            with path.open("rb") as file:
                for offset, data in _matching(file.fileno(), needle, stale):
                    self._check(hits, source, offset, parse_record(data, str(path)), needle)
        return None if stale() else array("I", (row for row, hit in enumerate(hits) if hit))

    def _check(self, hits: bytearray, source: int, offset: int, record: Mapping[str, Any], needle: str) -> None:
        rows, offsets = self._rows[source], self._offsets[source]
        first = place = bisect_left(offsets, offset)
        texts = [record.get("text"), record.get("hook"), record.get("message") if source % 2 else None]
        if isinstance(message := record.get("message"), dict):
            texts.append({name: value for name, value in message.items() if name not in _UNSEEN})
        own = needle in text_of(texts).lower()
        while place < len(offsets) and offsets[place] == offset:
            hits[rows[place]] |= own
            place += 1
        if place == first:  # superseded by a newer record
            return
        about = [record.get(name) for name in ("id", "input", "prompt", "messages")]
        line, prompt = self._cells.line[rows[first]], self._cells.prompt[rows[first]]
        if source % 2 and self._prompts.get(line) is None:
            about.append(record.get("request"))
        if needle in text_of(about).lower():
            self._hit_group(hits, line, prompt)

    def _hit_group(self, hits: bytearray, line: int, prompt: int) -> None:
        row = bisect_left(self._cells.line, line)
        while row < len(hits) and self._cells.line[row] == line:
            hits[row] |= self._cells.prompt[row] == prompt
            row += 1


def text_of(value: Any) -> str:
    """All text of a JSON value: of objects, that of their values."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return "\n".join(filter(None, map(text_of, value)))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _matching(fd: int, needle: str, stale: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line that may hold ``needle``, as JSON has it."""
    spelled = {json.dumps(word, ensure_ascii=False)[1:-1] for word in (needle, needle.upper(), needle.capitalize())}
    forms = {form.encode("utf-8", "surrogatepass").lower() for form in spelled}
    start = 0
    while not stale() and (block := os.pread(fd, _BLOCK, start)):
        while not block.endswith(b"\n") and (more := os.pread(fd, _BLOCK, start + len(block))):
            end = more.find(b"\n") + 1
            block += more[:end] if end else more
        small = block.lower()  # bytes: of ASCII letters only, so that offsets stay
        at = _next(small, forms, 0)
        while at >= 0:
            first = small.rfind(b"\n", 0, at) + 1
            end = small.find(b"\n", at)
            end = len(block) if end < 0 else end
            yield start + first, block[first:end]
            at = _next(small, forms, end)
        start += len(block)


def _next(block: bytes, forms: set[bytes], start: int) -> int:
    found = [at for form in forms if (at := block.find(form, start)) >= 0]
    return min(found, default=-1)
