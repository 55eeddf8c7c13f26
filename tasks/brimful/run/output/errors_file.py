"""``OUT.errors.jsonl``: one record per failed line, kept until the line succeeds."""

from __future__ import annotations

import json
import re
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

from brimful.errors import InputError
from brimful.packing.units import Failed, Unit
from brimful.run.input.columns import KEEP_ALL, Keep
from brimful.run.input.line_sets import LineSet
from brimful.run.input.reader import BadLine
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.output.done_index import DoneIndex, all_pairs
from brimful.run.output.jsonl import RecordFile, mend, scan
from brimful.run.output.records import given_id, load_line
from brimful.runtime.atomic import atomic_write
from brimful.words.phrases import cut

BAD_INPUT = "bad_input"
"""The cause of a line that makes no request. Every other cause is a :class:`brimful.outcome.Cause`."""
_BAD_LINE_KEPT = 10_000  # characters
_MESSAGES = 64  # different messages of a cause that are counted
_MESSAGE_KEPT = 160  # characters
_PLACE = re.compile(r"^.*?:\d+: ")


class ErrorsFile:
    """Failures by line: :meth:`load` what earlier tries recorded, then write new ones."""

    def __init__(self, path: Path, sweep: Sweep = NO_SWEEP) -> None:
        self.path = path
        self._sweep = sweep
        self.file = RecordFile(path)
        self._reset()

    def _reset(self) -> None:
        self.lines = LineSet()
        """Places of lines that have a record."""
        self._made_good = 0
        """Those of them that have succeeded since :meth:`load`."""
        self.by_combination: Counter[int] = Counter()
        """Failed requests of a sweep."""
        self.bad = LineSet()
        """Those of them that were bad input."""
        self.causes: dict[str, int] = {}
        """Lines by cause."""
        self.transient = 0
        """Lines whose failure may not repeat."""
        self._messages: dict[str, Counter[str]] = {}

    def load(self, done: DoneIndex) -> None:
        """Drop the records of what has succeeded and older ones of what failed again, and count what is left.

        Raises InputError for a line that is not a record, FleetError when the file cannot be written.
        """
        self.file.close()
        self._reset()
        mend(self.path)
        self._take_kept()
        if self.path.exists():
            self._compact(done)
        if self.path.exists():
            for number, (record, _) in enumerate(scan(self.path), 1):
                self._count(record, self._place(record, f"{self.path}:{number}"))
        self.file.lock()  # from here on its loss is noticed

    @property
    def failed(self) -> int:
        """Lines that have a record and have not succeeded since."""
        return len(self.lines) - self._made_good

    def make_good(self, line: int) -> bool:
        """Count a line that has succeeded; its records are dropped by the next :meth:`load`. False: it has none."""
        recorded = line in self.lines
        self._made_good += recorded
        return recorded

    def write_bad(self, bad: BadLine, keep: Keep = KEEP_ALL) -> None:
        """Record a bad line with the kept ones of its columns, as far as they are known. Raises FleetError."""
        where = self._sweep.describe(bad.line)
        text = bad.data[:_BAD_LINE_KEPT].decode("utf-8", "replace")
        try:
            request: Any = json.loads(text)
        except (ValueError, RecursionError):
            request = text
        self._write(
            {
                "id": bad.id,
                **(where if bad.combination else {"line": where["line"]}),
                "cause": BAD_INPUT,
                "message": str(bad),
                "attempts": 0,
                "request": request,
                "at": round(time.time(), 3),
                **keep.of_columns(bad.columns),
            }
        )

    def write_failed(self, failed: Failed, line: Unit | None = None, keep: Keep = KEEP_ALL) -> None:
        """Record a failure. ``line``: its line, of which ``keep`` says what is repeated; None when it was not read.
        Raises FleetError."""
        outcome, failure, request = failed.outcome, failed.failure, failed.request or (line and line.request)
        wanted = failed.wanted or (tuple(all_pairs(request)) if request else ())
        asked = {name: value for name, value in request.as_message().items() if name != "id"} if request else None
        self._write(
            {
                "id": failed.id if line is None else given_id(line),
                **self._sweep.describe(failed.line),
                "cause": failure.cause.value,
                "message": failure.message,
                "attempts": outcome.attempts,
                "request": asked,
                "status": failure.status,
                "permanent": failure.permanent,
                "wanted": [list(pair) for pair in wanted],
                "of": request.choices if request else None,
                "retries": outcome.retries,
                "request_id": outcome.id,
                "provider_request_ids": outcome.provider_request_ids,
                "at": round(outcome.ended_at or time.time(), 3),
                **(keep.of_columns(line.columns) if line is not None else {}),
                **failed.details,
            }
        )

    def commonest(self) -> dict[str, str]:
        """The most frequent message of each cause, cut to 160 characters."""
        return {cause: messages.most_common(1)[0][0] for cause, messages in self._messages.items()}

    def discard(self) -> None:
        """Remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def sync(self) -> None:
        """As :meth:`RecordFile.sync`."""
        self.file.sync()

    def close(self) -> None:
        self.file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self.file.write([record])
        self._count(record, self._place(record, str(self.path)))

    def _place(self, record: dict[str, Any], where: str) -> int:
        """Raises InputError for a record of another sweep, and TypeError or ValueError for none."""
        return self._sweep.place_of({"line": 0, **record}, where)

    def _count(self, record: dict[str, Any], line: int) -> None:
        cause = str(record.get("cause"))
        if cause == BAD_INPUT:
            self.bad.add(line)
        if not self.lines.add(line):
            return
        if "sweep_index" in record:
            self.by_combination[record["sweep_index"]] += 1
        self.causes[cause] = self.causes.get(cause, 0) + 1
        self.transient += cause != BAD_INPUT and not record.get("permanent")
        message = " ".join(str(record.get("message") or "").split())
        if cause == BAD_INPUT:
            message = _PLACE.sub("", message, count=1)
        message = cut(message, _MESSAGE_KEPT)
        messages = self._messages.setdefault(cause, Counter())
        if message in messages or len(messages) < _MESSAGES:
            messages[message] += 1

    def _take_kept(self) -> None:
        """Append what an earlier try kept, because the file was removed or replaced under it."""
        kept = self.file.kept
        if kept.exists():
            mend(kept)
            self.file.write([record for record, _ in scan(kept)])
            self.file.sync()
            self.file.close()
            kept.unlink()

    def _compact(self, done: DoneIndex) -> None:
        offsets = array("Q", (offset for _, offset in scan(self.path)))
        keep = bytearray(len(offsets))
        newer, whole = DoneIndex(), LineSet()
        with self.path.open("rb") as file:
            # Newest first: a record stays when it names a missing rollout that no newer record names.
            for place in range(len(offsets) - 1, -1, -1):
                file.seek(offsets[place])
                where = f"{self.path}:{place + 1}"
                record = load_line(file.readline(), where)
                try:
                    keep[place] = _stays(record, self._place(record, where), done, newer, whole)
                except (TypeError, ValueError):
                    raise InputError(f"{where}: is not a record of a failure; fix or remove that line") from None
            if all(keep):
                return
            if not any(keep):
                self.path.unlink()
                return
            with atomic_write(self.path) as out:
                for place, offset in enumerate(offsets):
                    if keep[place]:
                        file.seek(offset)
                        out.write(file.readline())


def _stays(record: dict[str, Any], line: int, done: DoneIndex, newer: DoneIndex, whole: LineSet) -> bool:
    """``newer``: rollouts that newer records name. ``whole``: lines of which a newer record names all."""
    if done.complete(line) or line in whole:
        return False
    of, wanted = record.get("of"), record.get("wanted")
    if not of or not wanted:
        whole.add(line)
        return not newer.started(line)
    missing = [(prompt, choice) for prompt, choice in wanted if not done.has(line, prompt, choice)]
    added = [newer.add(line, prompt, choice, of) for prompt, choice in missing]
    return any(added)
