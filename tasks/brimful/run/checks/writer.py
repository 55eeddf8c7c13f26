"""Writes what checks decided: accepted rollouts to the output, rejected and failed ones to files of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from brimful.dispatch.outcomes import STOPS
from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.units import Delivered, Failed, Unit
from brimful.run.checks.open_lines import Pair
from brimful.run.checks.rejections import ERROR, Place, Rejections
from brimful.run.checks.resampling import Resampling
from brimful.run.checks.verdict import Accepted, Broken, Rejected, Verdict
from brimful.run.input.feed import Feed
from brimful.run.output.collect import Collector
from brimful.run.output.records import rollout_records


class VerdictWriter:
    def __init__(
        self, collector: Collector, feed: Feed, rejections: Rejections, resampling: Resampling, most_tries: int
    ) -> None:
        self._collector = collector
        self._feed = feed
        self._rejections = rejections
        self._resampling = resampling
        self._most_tries = most_tries
        self._failures: dict[int, dict[tuple[Pair, ...], Failed]] = {}
        """By line and rollouts: not recorded while others of the line are open."""

    def write(
        self, items: Sequence[Delivered | Failed], verdicts: Mapping[Place, Verdict], *, earlier: bool
    ) -> set[Place]:
        """Write what a request has brought; returns the places that are given up. Raises FleetError.

        Rejections first: if the submitter dies after them, they are known when the outcome is judged again.
        """
        accepted: dict[Place, dict[str, Any]] = {}
        rejected: list[tuple[dict[str, Any], str, str]] = []
        failed: list[tuple[Delivered, Rollout, Rejected | Broken]] = []
        for item in items:
            if isinstance(item, Failed):
                self._fail(item)
                continue
            records: list[dict[str, Any]] = []
            for index, rollout in enumerate(item.rollouts):
                place = (item.line, rollout.prompt_index, rollout.choice_index)
                verdict = verdicts.get(place)
                if isinstance(verdict, Accepted):
                    tries = self._rejections.rejected(place) + 1
                    accepted[place] = ({"tries": tries} if tries > 1 else {}) | (
                        {"hook": dict(verdict.columns)} if verdict.columns else {}
                    )
                elif verdict is not None:
                    if self._rejections.known(place, item.outcome.id) is None:
                        named = self._collector.named(item, self._feed)
                        records = records or rollout_records(
                            named, self._feed.lines.get(item.line), sweep=self._feed.options.sweep
                        )
                        by = verdict.by if isinstance(verdict, Rejected) else ERROR
                        rejected.append((records[index], by, verdict.reason))
                    failed.append((item, rollout, verdict))
        self._rejections.add(rejected)
        self._collector.take(items, self._feed, earlier=earlier, accepted=accepted)
        for place in accepted:
            self._rejections.forget(place)
        given_up = {}
        for item, rollout, against in failed:
            place = (item.line, rollout.prompt_index, rollout.choice_index)
            if isinstance(against, Broken) or self._resampling.rejected(place) >= self._most_tries:
                given_up[place] = self._failure(place, item.id, against, item.outcome, rollout.text)
        for failure in given_up.values():
            self._fail(failure)
        return set(given_up)

    def give_up(self, unit: Unit, pair: Pair) -> None:
        """An earlier try has given up this rollout, and did not come to record it."""
        place = (unit.line, *pair)
        if (last := self._rejections.last(place)) is not None:
            outcome = Outcome(last.request)
            self._fail(self._failure(place, unit.id, last.verdict, outcome, None, unit))

    def end(self, line: int) -> None:
        """Record what was given up of the line: only now, since a recorded line is not asked for when the run resumes.

        Raises FleetError.
        """
        for failed in self._failures.pop(line, {}).values():
            self._collector.fail(failed, self._feed)

    def _fail(self, failed: Failed) -> None:
        if failed.failure.cause in STOPS:
            self._collector.fail(failed, self._feed)
        else:
            self._failures.setdefault(failed.line, {})[failed.wanted] = failed

    def _failure(
        self,
        place: Place,
        id: str,
        verdict: Rejected | Broken,
        outcome: Outcome,
        text: str | None,
        unit: Unit | None = None,
    ) -> Failed:
        line, *pair = place
        unit = unit or self._resampling.lines.unit(line)
        details: dict[str, Any] = {"tries": self._rejections.rejected(place)}
        if isinstance(verdict, Broken):
            failure = Failure(Cause.HOOK_ERROR, verdict.reason)
            details |= {"text": text} if text is not None else {}
        else:
            times = f"{self._most_tries} tries" if self._most_tries > 1 else "1 try"
            why = f"not accepted in {times}, the last by the {verdict.by}: {verdict.reason}"
            failure = Failure(Cause.REJECTED, why)
        request = unit.request if unit is not None else None
        outcome = replace(outcome, completion=None, failure=failure)
        return Failed(line, id, request, ((pair[0], pair[1]),), failure, outcome, details)
