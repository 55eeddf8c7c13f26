"""One fault: a piece of a source file and what stands there instead."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple


class Edit(NamedTuple):
    """Bytes ``start`` to ``end`` of a file become ``text``."""

    start: int
    end: int
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Fault:
    path: str
    """From the root of the repository."""
    line: int
    kind: str
    before: str
    """The line, stripped."""
    after: str
    occurrence: int
    """Of the same change of the same text in this file: 0, 1, …"""
    edit: Edit

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.edit.start] + self.edit.text.encode() + source[self.edit.end :]

    def rank(self, seed: int) -> bytes:
        """The order of a sample. A change elsewhere in the file keeps it."""
        return hashlib.sha256(f"{seed} {self.path} {self.before} {self.after} {self.occurrence}".encode()).digest()


def one_more(number: float) -> float:
    """Another constant: the next number, or the double of a larger one, where one more is as good."""
    return number + 1 if abs(number) < 10 else number * 2


def faults_of(path: str, source: bytes, edits: list[Edit]) -> list[Fault]:
    """The edits as faults, in the order of the file, each with the line that it changes."""
    faults: list[Fault] = []
    counted: dict[tuple[str, str], int] = {}
    for edit in sorted(set(edits)):
        begin = source.rfind(b"\n", 0, edit.start) + 1
        end = source.find(b"\n", edit.end)
        end = len(source) if end < 0 else end
        before = " ".join(source[begin:end].decode().split())
        after = " ".join((source[begin : edit.start] + edit.text.encode() + source[edit.end : end]).decode().split())
        occurrence = counted.get((before, after), 0)
        counted[before, after] = occurrence + 1
        line = source.count(b"\n", 0, edit.start) + 1
        faults.append(Fault(path, line, edit.kind, before, after, occurrence, edit))
    return faults
