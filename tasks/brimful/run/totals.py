"""The figures of one execution of a run: its progress, and its summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brimful.errors import BrimfulError
from brimful.packing.slot_model import Limits
from brimful.packing.units import DriveStatus
from brimful.profile import Tokens
from brimful.run.display.combinations import compare
from brimful.run.display.progress import Progress
from brimful.run.display.summary import Summary, exit_code_of
from brimful.run.input.feed import Feed
from brimful.run.output.collect import Collector
from brimful.run.prepare import Prepared


class Totals:
    """Adds up what the output holds, what was collected, and what the driver has counted."""

    def __init__(self, prepared: Prepared, collector: Collector, feed: Feed, clock: Callable[[], float]) -> None:
        self._prepared = prepared
        self._collector = collector
        self._feed = feed
        self._clock = clock
        self._began = clock()
        self.resumed = prepared.counts.rollouts
        """Rollouts of earlier tries."""

    @property
    def _requests(self) -> int:
        return self._prepared.survey.requests if self._prepared.survey else self._feed.requests

    @property
    def left(self) -> int:
        """Requests read so far that have neither succeeded nor failed."""
        return max(0, self._requests - self._prepared.done.lines - self._collector.failed)

    @property
    def _pending(self) -> int:
        """Failed requests that this try asks for again, and that have not ended."""
        if not self._prepared.options.retry_errors:
            return 0
        return max(0, self._prepared.left - self._collector.ended_again)

    @property
    def _cost(self) -> float | None:
        cost = self._cost_of(self._prepared.counts.models_with(self._prepared.rejections.counts))
        return None if cost is None else round(cost, 6)

    @property
    def _unpriced(self) -> list[str]:
        """Models without a price, if others have one."""
        if self._cost is None:
            return []
        price = self._prepared.profile.price
        return list({models[-1]: None for models in self._prepared.counts.by_model if price(*models) is None})

    def _sweep(self) -> list[dict[str, Any]]:
        """The figures of each combination; none without a sweep."""
        sweep, errors = self._prepared.options.read.sweep, self._prepared.errors
        if not sweep:
            return []
        failed = errors.by_combination if errors is not None else {}
        combinations = [dict(each) for each in sweep.combinations]
        return compare(combinations, self._prepared.counts.combinations, failed, self._cost_of)

    def _cost_of(self, used: Mapping[tuple[str, ...], Tokens]) -> float | None:
        return self._prepared.profile.cost(used, batch=self._prepared.options.batch)

    def _retries(self, drive: DriveStatus) -> dict[str, int]:
        collected = self._collector.retries
        causes = {**collected, **drive.retries}
        return {str(cause): max(collected.get(cause, 0), drive.retries.get(cause, 0)) for cause in causes}

    def progress(self, drive: DriveStatus, *, stopping: bool, held_by: str = "") -> Progress:
        prepared, counts = self._prepared, self._prepared.counts
        return Progress(
            seconds=self._clock() - self._began,
            requests=self._requests,
            total=prepared.survey.requests if prepared.survey else None,
            succeeded=prepared.done.lines,
            failed=self._collector.failed,
            rollouts=counts.rollouts,
            new_rollouts=counts.rollouts - self.resumed,
            tokens=counts.tokens + prepared.rejections.counts.tokens,
            budget=prepared.options.budget_tokens,
            cost=self._cost,
            money=prepared.options.budget,
            retries=self._retries(drive),
            rate_limited=max(drive.rate_limited, self._collector.rate_limited),
            pending=self._pending,
            drive=drive,
            stopping=stopping,
            held_by=held_by,
        )

    def summary(self, drive: DriveStatus, ended: str, error: BrimfulError | None) -> Summary:
        """``ended`` is :attr:`Summary.ended`; an interrupt that came after the last request counts as ``done``."""
        prepared, counts, collected = self._prepared, self._prepared.counts, self._collector
        paths, profile, errors = prepared.paths, prepared.profile, prepared.errors
        limits = drive.limits or Limits(profile.slots, profile.starts, profile.window_s)
        seconds = max(1e-9, self._clock() - self._began)
        left = self.left
        input_read = prepared.survey is not None or self._feed.at_end
        if ended == "interrupted" and input_read and not left:
            retrying = collected.failed and prepared.options.retry_errors
            ended = ended if retrying else "done"
        # A packed request that was split delivers nothing: only the driver knows of its attempts.
        attempts = max(drive.attempts, collected.attempts)
        return Summary(
            requests=self._requests,
            rollouts=counts.rollouts,
            succeeded=prepared.done.lines,
            failed=collected.failed,
            left=left if input_read else None,
            resumed=self.resumed,
            truncated=counts.truncated,
            filtered=counts.filtered,
            empty=counts.empty,
            failed_by_cause=dict(errors.causes) if errors else {},
            failure_messages=errors.commonest() if errors else {},
            failed_passing=errors.transient if errors else 0,
            tokens=counts.tokens,
            unmetered_tokens=self._feed.budget.unmetered,
            cost=self._cost,
            unpriced=self._unpriced,
            estimated=counts.estimated,
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            starts=attempts,
            attempts=attempts,
            rate_limited=max(drive.rate_limited, collected.rate_limited),
            retries=self._retries(drive),
            packed_requests=max(drive.packed, collected.packed),
            parted=drive.split,
            seconds=round(seconds, 3),
            waiting_s=collected.waiting_s.summary(),
            provider_s=collected.provider_s.summary(),
            retrying_s=collected.retrying_s.summary(),
            achieved={
                "starts": attempts,
                "slots": round(collected.provider_sum_s / seconds, 2),
                "rollouts_per_minute": round((counts.rollouts - self.resumed) / seconds * 60, 1),
            },
            allowed={
                "starts": limits.starts and limits.starts * (1 + int(seconds / limits.window_s)),
                "starts_per_window": limits.starts,
                "window_s": limits.window_s,
                "slots": limits.slots,
            },
            learnt=list(limits.learnt),
            sweep=self._sweep(),
            output=str(paths.output) if paths else "-",
            errors=str(paths.errors) if paths and paths.errors.exists() else None,
            kept=prepared.files.kept if prepared.files else None,
            exit_code=int(error.exit_code if error else exit_code_of(ended, collected.failed)),
            ended=ended,
        )
