"""Writes what the driver delivers: rollouts in whole batches, failures one by one, and the counts of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brimful.dispatch.outcomes import attempts_since
from brimful.outcome import Cause, Outcome
from brimful.packing.units import Delivered, Failed, Unit
from brimful.packing.usage import ESTIMATED
from brimful.run.display.stats import Counts, Histogram, Recent
from brimful.run.input.columns import KEEP_ALL, Keep
from brimful.run.input.feed import Feed
from brimful.run.input.line_sets import LineSet
from brimful.run.input.reader import BadLine
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import Sink
from brimful.run.output.records import rollout_records

_UNKNOWN = 1 << 60  # rollouts of a line that was not read yet: never reached, so the line is not complete


@dataclass
class Collector:
    """Writes what the driver delivers, and counts it: the requests of this execution, in ``failed`` those of all."""

    sink: Sink
    done: DoneIndex
    counts: Counts
    errors: ErrorsFile | None
    """None: failures go to ``say``."""
    say: Callable[[str], None]
    on_end: Callable[[str, str], None]
    """Called with cause and message when the provider refuses everything from now on: ``key_refused``, ``budget``."""
    keep: Keep = KEEP_ALL
    rejected: Counts = field(default_factory=Counts)
    """Rollouts that were sampled and are not in the output."""

    def __post_init__(self) -> None:
        self._outcomes = Recent()
        self._unrecorded = 0
        self._undecided: list[tuple[Failed, Unit | None]] | None = []
        self._began = time.time()
        self.waiting_s, self.provider_s, self.retrying_s = Histogram(), Histogram(), Histogram()
        self.provider_sum_s = 0.0
        self.attempts = 0
        self.rate_limited = 0
        self.packed = 0
        self._failed_now = LineSet()
        self.ended_again = 0
        """Requests that had failed before, and have succeeded or failed in this try."""
        self.retries: dict[str, int] = {}

    @property
    def failed(self) -> int:
        """Requests that failed, and have not succeeded since."""
        return self.errors.failed if self.errors is not None else self._unrecorded

    def take(
        self,
        batch: Sequence[Delivered | Failed],
        feed: Feed,
        *,
        earlier: bool = False,
        accepted: Mapping[tuple[int, int, int], Mapping[str, Any]] | None = None,
    ) -> None:
        """Write a batch. Raises FleetError when its rollouts cannot be written, and counts none of them then.

        Rollouts that the output holds already are dropped. ``earlier``: outcomes of an earlier try, which are written
        but not counted as requests of this one. ``accepted``: the only rollouts that are written, by line, prompt and
        choice, with further fields for their records; whoever accepts them calls :meth:`fail` for the failures, and
        informs the feed when a line has ended.
        """
        records = []
        new: dict[tuple[int, int, int], int] = {}
        for item in batch:
            if not earlier:
                self._count(item.outcome, item.packed if isinstance(item, Delivered) else 1)
            if isinstance(item, Delivered):
                line = feed.lines.get(item.line)
                of = line.request.choices if line is not None else None
                for record in rollout_records(self.named(item, feed), line, self.keep, feed.options.sweep):
                    place = (item.line, record["prompt_index"], record["choice_index"])
                    if accepted is not None:
                        if place not in accepted:
                            continue
                        record |= accepted[place]
                    if place not in new and not self.done.has(*place):
                        new[place] = of or _UNKNOWN
                        records.append(record)
        self.sink.write(records)
        for place, of in new.items():
            self.done.add(*place, of)
            if self.errors is not None and self.errors.lines and self.done.complete(place[0]):
                self.ended_again += self.errors.make_good(place[0])
        for record in records:
            self.counts.add(record)
        feed.budget.count(self.counts.models_with(self.rejected))
        if feed.budget.limited:
            self._learn(batch, feed)
        if records:
            self.record_undecided()
        for item in batch:
            if accepted is None:
                if isinstance(item, Failed):
                    self.fail(item, feed)
                    feed.failed(item.line, item.wanted)
                feed.settle(item.line)

    def fail(self, failed: Failed, feed: Feed) -> None:
        """Record a failure, or what it means for the whole run. Raises FleetError."""
        self._fail(failed, feed.lines.get(failed.line))

    def named(self, item: Delivered, feed: Feed) -> Delivered:
        """With the model that was asked for, where models have prices and it is not known."""
        if not feed.profile.prices or item.asked_model:
            return item
        sweep = feed.options.sweep
        asked = sweep.combinations[sweep.index(item.line)].get("model") or feed.options.defaults.get("model")
        return replace(item, asked_model=str(asked or feed.profile.model or ""))

    @property
    def undecided(self) -> int:
        """Failures that are not recorded yet: so far the provider has refused everything, maybe for no line's fault."""
        return len(self._undecided or ())

    @property
    def decided(self) -> bool:
        """Whether the provider has sampled something."""
        return self._undecided is None

    def record_undecided(self) -> None:
        """Record them: the provider has sampled something, or the run is over. Raises FleetError."""
        undecided, self._undecided = self._undecided, None
        for failed, line in undecided or ():
            self._record(failed, line)

    def drop_undecided(self) -> None:
        """The next try asks for these lines again."""
        self._undecided = None

    def take_bad(self, bad: BadLine) -> None:
        """Record a bad line of the input. Raises FleetError."""
        if self.errors is not None:
            self.errors.write_bad(bad, self.keep)
        else:
            self._unrecorded += 1
            self.say(str(bad))

    def _fail(self, failed: Failed, line: Unit | None) -> None:
        cause, message = failed.failure.cause, failed.failure.message
        if cause in (Cause.KEY_REFUSED, Cause.BUDGET):
            self.on_end(cause.value, message)  # not the request's fault: the next try asks again
        elif failed.failure.permanent and self._undecided is not None:
            self._undecided.append((failed, line))
        else:
            self._record(failed, line)

    def _record(self, failed: Failed, line: Unit | None) -> None:
        if self.errors is not None:
            before = failed.line in self.errors.lines
            self.ended_again += self._failed_now.add(failed.line) and before  # a line may have several records
            self.errors.write_failed(failed, line, self.keep)
        else:
            self._unrecorded += 1
            failure = failed.failure
            self.say(f"line {failed.line} (id {failed.id}): {failure.cause.value}: {failure.message}")

    def _learn(self, batch: Sequence[Delivered | Failed], feed: Feed) -> None:
        """Teach the budget how many tokens the provider counts in prompts."""
        by_request: dict[str, list[Delivered]] = {}
        for item in batch:
            if isinstance(item, Delivered):
                by_request.setdefault(item.outcome.id, []).append(item)
        for items in by_request.values():
            usages = [item.usage for item in items]
            lines = [feed.lines.get(item.line) for item in items]
            whole = all(
                line is not None and len(item.rollouts) == line.request.choices
                for item, line in zip(items, lines, strict=True)
            )
            if whole and all(usage and not usage.get(ESTIMATED) for usage in usages):
                counted = sum(usage.get("prompt_tokens") or 0 for usage in usages if usage)
                feed.budget.learn((item.line for item in items), counted)

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
