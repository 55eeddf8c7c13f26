"""``OUT.rejected.jsonl``: one record for each rollout that was sampled and not accepted.

A resumed run reads from it how often each choice was tried and what the rejected rollouts have cost. A rollout that is
delivered again, since the submitter died before it acknowledged the first delivery, is known by its request.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import InputError
from brimful.run.checks.verdict import Broken, Rejected
from brimful.run.display.stats import Counts
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.jsonl import RecordFile, mend, scan

Place = tuple[int, int, int]
"""``(line, prompt_index, choice_index)``"""
ERROR = "error"
"""In place of what rejected it: the hook failed."""
_KEPT = (
    "id", "line", "sweep", "sweep_index", "prompt_index", "choice_index", "of", "finish_reason", "usage", "model",
    "asked_model", "attempts", "request_id",
)  # fmt: skip


class Rejection(NamedTuple):
    request: str
    by: str
    """``schema``, ``hook`` or ``error``."""
    reason: str

    @property
    def verdict(self) -> Rejected | Broken:
        return Broken(self.reason, self.reason) if self.by == ERROR else Rejected(self.by, self.reason)


class Rejections:
    """:meth:`load` what earlier tries recorded, then :meth:`add` more."""

    def __init__(self, path: Path | None, *, texts: bool = False, sweep: Sweep = NO_SWEEP) -> None:
        """``path`` None: nothing is written. ``texts``: keep the rejected texts, not only those of failed hooks."""
        self.file = RecordFile(path or Path(os.devnull))
        self._written = path is not None
        self._texts = texts
        self._sweep = sweep
        self.counts = Counts()
        """Of the rejected rollouts, over all tries of the run."""
        self.by: Counter[str] = Counter()
        self._places: dict[Place, list[Rejection]] = {}

    def load(self, done: DoneIndex) -> None:
        """Raises InputError for a line that is not a record, FleetError when the file cannot be written."""
        mend(self.file.path)
        if self.file.kept.exists():
            mend(self.file.kept)
            self.file.write([record for record, _ in scan(self.file.kept)])
            self.file.sync()
            self.file.close()
            self.file.kept.unlink()
        if not self.file.path.exists():
            return
        if self._written:
            self.file.lock()  # from here on its loss is noticed
        for number, (record, _) in enumerate(scan(self.file.path), 1):
            try:
                place = self._place(record, f"{self.file.path}:{number}")
                self._count(record, place)
                if done.has(*place):
                    self.forget(place)
            except (KeyError, TypeError, ValueError):
                raise InputError(
                    f"{self.file.path}:{number}: is not a record of a rejected rollout; fix or remove that line"
                ) from None

    def add(self, records: Sequence[tuple[dict[str, Any], str, str]]) -> None:
        """Rollout records, each with what rejected it and why. Raises FleetError, and counts none of them then."""
        written = []
        for record, by, reason in records:
            kept = {name: record[name] for name in _KEPT if name in record}
            sample = self.rejected(self._place(record)) + 1
            kept |= {"try": sample, "by": by, "reason": reason, "at": round(time.time(), 3)}
            written.append(kept | ({"text": record["text"]} if self._texts or by == ERROR else {}))
        if self._written:
            self.file.write(written)
        for kept in written:
            self._count(kept, self._place(kept))

    def rejected(self, place: Place) -> int:
        """How many samples of this choice were not accepted so far."""
        return len(self._places.get(place, ()))

    def known(self, place: Place, request: str) -> Rejection | None:
        """The rejection of this choice's rollout in this request, if it is recorded."""
        return next((each for each in self._places.get(place, ()) if each.request == request), None)

    def last(self, place: Place) -> Rejection | None:
        """The newest rejection of this choice."""
        found = self._places.get(place)
        return found[-1] if found else None

    def given_up(self, place: Place, most: int) -> bool:
        """Whether the choice was rejected ``most`` times, or the hook failed on its newest sample."""
        found = self._places.get(place)
        return found is not None and (len(found) >= most or found[-1].by == ERROR)

    def forget(self, place: Place) -> None:
        """A later sample of this choice was accepted."""
        self._places.pop(place, None)

    def discard(self) -> None:
        """Remove the file."""
        self.file.close()
        self.file.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.file.close()

    def _place(self, record: dict[str, Any], where: str = "") -> Place:
        return self._sweep.place_of(record, where), int(record["prompt_index"]), int(record["choice_index"])

    def _count(self, record: dict[str, Any], place: Place) -> None:
        rejection = Rejection(str(record["request_id"]), str(record["by"]), str(record["reason"]))
        self._places.setdefault(place, []).append(rejection)
        self.counts.add(record)
        self.by[rejection.by] += 1
