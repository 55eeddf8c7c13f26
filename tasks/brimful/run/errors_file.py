"""``OUT.errors.jsonl``: every failure as a record, until its success is written."""

from __future__ import annotations

import contextlib
import json
import os
import time
from array import array
from pathlib import Path
from typing import Any

from brimful.errors import FleetError, InputError
from brimful.run.output import LedgerFile, mend, scan
from brimful.run.read import BadLine
from brimful.run.records import load_line
from brimful.run.tally import LineSet, Tally, all_pairs
from brimful.run.units import Failed

BAD_INPUT = "bad_input"
"""The cause of a line that no request could be made of; every other cause is a :class:`brimful.outcome.Cause`."""
_SHOWN = 10_000  # characters of a bad line that are kept


class ErrorsFile:
    """Failures by line. What was recorded in an earlier try stays until the line succeeds, or fails anew."""

    def __init__(self, path: Path) -> None:
        self._file = LedgerFile(path)
        self.path = path
        self.lines = LineSet()
        """Lines that have a record."""
        self.bad = LineSet()
        """Those of them that were bad input."""
        self.causes: dict[str, int] = {}
        """Lines by cause."""

    def load(self, tally: Tally) -> None:
        """Read what earlier tries recorded, after dropping what has succeeded since. Raises InputError."""
        self._file.close()
        mend(self.path)
        self._compact(tally)
        self.lines, self.bad, self.causes = LineSet(), LineSet(), {}
        if self.path.exists():
            for record, _ in scan(self.path):
                self._count(int(record.get("line") or 0), str(record.get("cause")))

    def write_bad(self, bad: BadLine) -> None:
        text = bad.data[:_SHOWN].decode("utf-8", "replace")
        try:
            request: Any = json.loads(text)
        except (ValueError, RecursionError):
            request = text
        self._write(
            {
                "id": bad.id,
                "line": bad.line,
                "cause": BAD_INPUT,
                "message": str(bad),
                "attempts": 0,
                "request": request,
                "at": round(time.time(), 3),
            }
        )

    def write_failed(self, failed: Failed) -> None:
        outcome, failure, request = failed.outcome, failed.failure, failed.request
        wanted = failed.wanted or (tuple(all_pairs(request)) if request else ())
        self._write(
            {
                "id": failed.id,
                "line": failed.line,
                "cause": failure.cause.value,
                "message": failure.message,
                "attempts": outcome.attempts,
                "request": _asked(failed),
                "status": failure.status,
                "permanent": failure.permanent,
                "wanted": [list(pair) for pair in wanted],
                "of": request.choices if request else None,
                "retries": outcome.retries,
                "request_id": outcome.id,
                "at": round(outcome.ended_at or time.time(), 3),
            }
        )

    def finish(self, tally: Tally) -> None:
        """Drop the records of what has succeeded, and older ones of what failed again; count what is left."""
        self.load(tally)

    def close(self) -> None:
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write([record])
        self._count(record["line"], record["cause"])

    def _count(self, line: int, cause: str) -> None:
        if cause == BAD_INPUT:
            self.bad.add(line)
        if self.lines.add(line):
            self.causes[cause] = self.causes.get(cause, 0) + 1

    def _compact(self, tally: Tally) -> None:
        if not self.path.exists():
            return
        offsets = array("Q")
        for _, offset in scan(self.path):
            offsets.append(offset)
        keep = bytearray(len(offsets))
        newer, whole = Tally(), LineSet()
        with self.path.open("rb") as file:
            # From the newest on: a record stays if it tells of a rollout that no newer one does.
            for place in range(len(offsets) - 1, -1, -1):
                file.seek(offsets[place])
                record = load_line(file.readline(), f"{self.path}:{place + 1}")
                try:
                    keep[place] = _stays(record, tally, newer, whole)
                except (TypeError, ValueError):
                    raise InputError(
                        f"{self.path}:{place + 1}: is no record of a failure; mend or remove that line"
                    ) from None
            if all(keep):
                return
            self._rewrite(file, offsets, keep)

    def _rewrite(self, file: Any, offsets: array[int], keep: bytearray) -> None:
        if not any(keep):
            self.path.unlink()
            return
        new = self.path.with_name(self.path.name + ".new")
        try:
            with new.open("wb") as out:
                for place, offset in enumerate(offsets):
                    if keep[place]:
                        file.seek(offset)
                        out.write(file.readline())
            os.replace(new, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()  # a full disk leaves an empty one
            raise FleetError(f"cannot write {self.path}: {error.strerror or error}") from None


def _stays(record: dict[str, Any], tally: Tally, newer: Tally, whole: LineSet) -> bool:
    line = int(record.get("line") or 0)
    if tally.complete(line) or line in whole:
        return False
    of, wanted = record.get("of"), record.get("wanted")
    if not of or not wanted:
        whole.add(line)
        return not newer.started(line)
    missing = [(prompt, choice) for prompt, choice in wanted if not tally.has(line, prompt, choice)]
    new = [newer.add(line, prompt, choice, of) for prompt, choice in missing]
    return any(new)


def _asked(failed: Failed) -> dict[str, Any] | None:
    if failed.request is None:
        return None
    message = failed.request.as_message()
    return {name: value for name, value in message.items() if name != "id"}
