"""What comes of requests, into the files: records written in whole batches, failures recorded, figures kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from brimful.dispatch.outcomes import attempts_since
from brimful.outcome import Cause, Outcome
from brimful.packing.units import Delivered, Failed
from brimful.run.display.stats import Counts, Histogram, Recent
from brimful.run.input.feed import Feed
from brimful.run.input.reader import BadLine
from brimful.run.output.done_index import Tally
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import Sink
from brimful.run.output.records import rollout_records

_UNKNOWN = 1 << 60  # rollouts of a line that was not read yet: more than any has


class Collector:
    """``on_end(ended, message)`` is called when the provider takes nothing more: ``key_refused`` or ``budget``."""

    def __init__(
        self,
        sink: Sink,
        tally: Tally,
        counts: Counts,
        errors: ErrorsFile | None,
        say: Callable[[str], None],
        on_end: Callable[[str, str], None],
    ) -> None:
        self._sink = sink
        self._tally = tally
        self._counts = counts
        self._errors = errors
        self._say = say
        self._on_end = on_end
        self._outcomes = Recent()
        self._unrecorded = 0
        self._began = time.time()
        self.waiting_s, self.provider_s, self.retrying_s = Histogram(), Histogram(), Histogram()
        self.provider_sum_s = 0.0
        self.attempts = 0
        self.rate_limited = 0
        self.packed = 0
        self.retries: dict[str, int] = {}

    @property
    def failed(self) -> int:
        """Requests that failed, in all tries."""
        return len(self._errors.lines) if self._errors is not None else self._unrecorded

    def take(self, batch: Sequence[Delivered | Failed], feed: Feed, *, earlier: bool = False) -> None:
        """All of it is on disk when this returns. Raises FleetError when it cannot be written, and counts none of it.

        ``earlier``: outcomes of an earlier try, which this one only writes down.
        """
        tally, records = self._tally, []
        new: dict[tuple[int, int, int], int] = {}
        for item in batch:
            if not earlier:
                self._count(item.outcome, item.packed if isinstance(item, Delivered) else 1)
            if isinstance(item, Delivered):
                of = feed.rollouts_of(item.line)
                for record in rollout_records(item, of):
                    place = (item.line, record["prompt_index"], record["choice_index"])
                    if place not in new and not tally.has(*place):
                        new[place] = of or _UNKNOWN
                        records.append(record)
        self._sink.write(records)
        for place, of in new.items():
            tally.add(*place, of)
        for record in records:
            self._counts.add(record)
        feed.spent(self._counts.tokens)
        for item in batch:
            if isinstance(item, Failed):
                self._fail(item)
                feed.ended(item.line)
            elif tally.complete(item.line):
                feed.ended(item.line)

    def take_bad(self, bad: BadLine) -> None:
        """A line of the input that no request could be made of."""
        if self._errors is not None:
            self._errors.write_bad(bad)
        else:
            self._unrecorded += 1
            self._say(str(bad))

    def _fail(self, failed: Failed) -> None:
        cause = failed.failure.cause
        if cause in (Cause.KEY_REFUSED, Cause.BUDGET):
            self._on_end(cause.value, failed.failure.message)  # it is not the request's fault: asked again next time
        elif cause is not Cause.CANCELLED:
            if self._errors is not None:
                self._errors.write_failed(failed)
            else:
                self._unrecorded += 1
                self._say(f"line {failed.line} (id {failed.id}): {cause.value}: {failed.failure.message}")

    def _count(self, outcome: Outcome, packed: int) -> None:
        if not self._outcomes.add(outcome.id):
            return
        self.attempts += attempts_since(outcome, self._began)
        self.rate_limited += outcome.rate_limited
        self.packed += packed > 1
        for cause, count in outcome.retries.items():
            self.retries[str(cause)] = self.retries.get(str(cause), 0) + count
        self.waiting_s.add(outcome.waited_s)
        self.provider_s.add(outcome.provider_s)
        self.retrying_s.add(outcome.retrying_s)
        self.provider_sum_s += outcome.provider_s
