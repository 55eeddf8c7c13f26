"""Versions of what brimful stores and sends, so that programs of different releases meet safely.

A program reads its own version and all earlier ones. What a later program wrote it refuses, naming both versions. What
names no version is version 1. Raise a number with each change that an earlier program would misread, and record new
fixtures (tests/fixtures/formats). The admission's version is :mod:`brimful_worker.admission`'s own.
"""

from __future__ import annotations

from typing import Any

from brimful.errors import VersionMismatch

MESSAGES = 1
"""Task messages: :data:`HEADER` of a single request, the field ``schema`` of each request in a shard."""
LEDGER = 1
"""A run's keys in Redis: the key ``schema``."""
FILES = 1
"""The files beside an output, and its records: ``version`` in ``OUT.run.json``."""
HEADER = "brimful_schema"
"""Header of a task message."""


def check_schema(what: str, found: Any, mine: int, way_out: str) -> None:
    """Raises VersionMismatch if ``found``, the version of ``what``, is not one that a program of ``mine`` reads.

    ``what`` names the thing ("the task's message"); None as ``found`` counts as 1.
    """
    version = 1 if found is None else found
    if isinstance(version, str) and version.isdecimal():
        version = int(version)
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= mine:
        raise VersionMismatch(f"{what} has version {found} of its format; this brimful reads up to {mine}: {way_out}")
