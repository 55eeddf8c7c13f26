"""The order in which test files are run beside each other: those that wait between those that compute.

Tests of ``unit`` keep a core busy; most of the others wait for processes, leases and polls. Run one after the other,
the first would leave cores idle and the second would share them with nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Protocol, TypeVar

WAITING = 2
"""Files that wait for each file that computes. The last files compute, so that all processes end together."""


class HasPath(Protocol):
    @property
    def path(self) -> Path: ...


Test = TypeVar("Test", bound=HasPath)


def interleaved(tests: Iterable[Test]) -> Iterator[Test]:
    """All tests, file by file; files of a kind keep their order."""
    files = [list(group) for _, group in groupby(tests, key=lambda test: test.path)]
    computing = iter([file for file in files if file[0].path.parent.name == "unit"])
    waiting = iter([file for file in files if file[0].path.parent.name != "unit"])
    while part := [*islice(waiting, WAITING), *islice(computing, 1)]:
        for file in part:
            yield from file
