"""``OUT.errors.jsonl``: every failure as a record, until its success is written."""

from __future__ import annotations

import json
import re
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

from brimful.errors import InputError
from brimful.packing.units import Failed
from brimful.run.input.reader import BadLine
from brimful.run.output.done_index import LineSet, Tally, all_pairs
from brimful.run.output.jsonl import LedgerFile, mend, scan
from brimful.run.output.records import load_line
from brimful.runtime.atomic import atomic_write

BAD_INPUT = "bad_input"
"""The cause of a line that no request could be made of; every other cause is a :class:`brimful.outcome.Cause`."""
_SHOWN = 10_000  # characters of a bad line that are kept
_KINDS = 64  # messages of a cause that are counted
_PLACE = re.compile(r"^.*?:\d+: ")
_MESSAGE = 160  # characters of one that are told


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
        self.messages: dict[str, Counter[str]] = {}
        """What was said with them, by cause; so many kinds of each, cut short."""
        self.passing = 0
        """Lines that failed of what may pass."""

    def load(self, tally: Tally) -> None:
        """Read what earlier tries recorded, after dropping what has succeeded since. Raises InputError."""
        self._file.close()
        mend(self.path)
        self._compact(tally)
        self.lines, self.bad, self.causes = LineSet(), LineSet(), {}
        self.messages, self.passing = {}, 0
        if self.path.exists():
            for record, _ in scan(self.path):
                self._count(record)

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

    def commonest(self) -> dict[str, str]:
        """The message told most often, by cause."""
        return {cause: said.most_common(1)[0][0] for cause, said in self.messages.items()}

    def discard(self) -> None:
        """Nothing of it holds any more."""
        self.close()
        self.path.unlink(missing_ok=True)

    def finish(self, tally: Tally) -> None:
        """Drop the records of what has succeeded, and older ones of what failed again; count what is left."""
        self.load(tally)

    def close(self) -> None:
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write([record])
        self._count(record)

    def _count(self, record: dict[str, Any]) -> None:
        line, cause = int(record.get("line") or 0), str(record.get("cause"))
        if cause == BAD_INPUT:
            self.bad.add(line)
        if not self.lines.add(line):
            return
        self.causes[cause] = self.causes.get(cause, 0) + 1
        self.passing += cause != BAD_INPUT and not record.get("permanent")
        said = self.messages.setdefault(cause, Counter())
        message = str(record.get("message") or "")
        if cause == BAD_INPUT:
            message = _PLACE.sub("", message, count=1)
        message = _short(message)
        if message in said or len(said) < _KINDS:
            said[message] += 1

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
        with atomic_write(self.path) as out:
            for place, offset in enumerate(offsets):
                if keep[place]:
                    file.seek(offset)
                    out.write(file.readline())


def _short(message: str) -> str:
    """On one line."""
    text = " ".join(message.split())
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 1] + "…"


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
