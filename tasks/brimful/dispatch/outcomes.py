"""What a request's outcome means: records for the lines it carried, counts, and requests to send again. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest, split_failed
from brimful.packing.units import Delivered, DriveStatus, Failed
from brimful.packing.unpacking import failed_lines, unpack

STOPS = (Cause.KEY_REFUSED, Cause.BUDGET)
"""Failures after which no request of the run can succeed."""
REFUSED = "refused"
"""Why nothing more is sent: the first requests were all refused with the same words."""
_REFUSED_LINES = 20
_REFUSED_REQUESTS = 64
"""Lines that were refused in the same words before any was sampled; requests, while packs are split in search of the
culprit: each of them may hold a line that deserves it, so more are needed."""


def attempts_since(outcome: Outcome, began: float) -> int:
    """The outcome's attempts that began after ``began`` (Unix seconds), as far as is known: it knows only when its
    first one began. A request taken over from an earlier submitter had that one, or all of them, before."""
    if outcome.started_at is None or outcome.started_at >= began:
        return outcome.attempts
    if outcome.ended_at is not None and outcome.ended_at < began:
        return 0
    return max(0, outcome.attempts - 1)


class SameRefusals:
    """Notices that a provider refuses everything in the same words: a wrong key (as 400), an unknown model or path."""

    def __init__(self) -> None:
        self._failure: Failure | None = None
        self.targets: set[tuple[Mode, str]] = set()
        """Endpoints and models of what was refused."""
        self._lines = self._requests = 0
        self._over = False
        self.final = False
        """The run stops because of it; what ends meanwhile changes nothing."""

    def add(self, failure: Failure | None, lines: int = 0, target: tuple[Mode, str] | None = None) -> None:
        """A request for ``target`` has ended, and so many lines have failed for good with it."""
        if self._over or self.final:
            return
        if failure is not None and (not failure.permanent or failure.cause is Cause.CANCELLED):
            return
        if failure is None or failure.cause not in (Cause.BAD_REQUEST, Cause.CONNECTION):
            self._over = True
        elif self._failure is None or self._failure.message == failure.message:
            self._failure = failure
            self._requests += 1
            if target is not None:
                self.targets.add(target)
            self._lines += lines
        else:
            self._over = True

    @property
    def failure(self) -> Failure | None:
        """The refusal, once it cannot be due to single lines."""
        enough = self._lines >= _REFUSED_LINES or self._requests >= _REFUSED_REQUESTS
        return self._failure if enough and not self._over else None


class Outcomes:
    """Keeps the status, teaches the sizer latencies, and gives parts of failed packs back to the batcher."""

    def __init__(self, batcher: Batcher, sizer: PackSizer, status: DriveStatus) -> None:
        self._refusals = SameRefusals()
        self._batcher = batcher
        self._sizer = sizer
        self._status = status
        self._began = time.time()

    @property
    def pack(self) -> int:
        """Prompts that a request carries at present."""
        return max(1, self._batcher.pack)

    def records(self, packed: PackedRequest, outcome: Outcome, *, adopted: bool = False) -> list[Delivered | Failed]:
        """Empty where the request is sent again, or was only stopped. ``adopted``: it was made by an earlier submitter,
        so that the lines' own requests are not known."""
        self._count(packed, outcome)
        failure = outcome.failure
        if failure is None:
            try:
                delivered = unpack(packed.manifest, outcome, packed.pack_key.model)
            except (ValueError, KeyError, TypeError) as error:
                failure = Failure(Cause.BAD_ANSWER, f"the outcome does not fit its request: {error}")
                outcome = replace(outcome, completion=None, failure=failure)
            else:
                self._refusals.add(None)
                self._learn(packed, outcome)
                self._status.rollouts += packed.choices
                return list(delivered)
        sent_again = self._send_again(packed, failure)
        self._refusals.add(failure, 0 if sent_again else packed.lines, packed.pack_key.target)
        return [] if sent_again else self._failed(packed, outcome, adopted)

    @property
    def refused(self) -> Failure | None:
        """The provider's refusal of every request of this try, once it cannot be due to single lines; else None."""
        return self._refusals.failure

    def refuses_all(self, in_flight: Iterable[PackedRequest]) -> bool:
        """Whether nothing that is held or in flight has another endpoint or model than what was refused."""
        if self.refused is not None:
            waiting = self._batcher.targets | {packed.pack_key.target for packed in in_flight}
            self._refusals.final |= waiting <= self._refusals.targets
        return self._refusals.final

    def revoked(self, packed: PackedRequest, shard: str, *, adopted: bool = False) -> list[Delivered | Failed]:
        """Records for a request that got no outcome, since its shard's task was revoked."""
        message = f"its task {shard} was revoked before it ended; --retry-errors asks for it again"
        return self._failed(packed, Outcome(packed.id, failure=Failure(Cause.CANCELLED, message)), adopted)

    def _failed(self, packed: PackedRequest, outcome: Outcome, adopted: bool) -> list[Delivered | Failed]:
        records = failed_lines(packed, outcome)
        self._status.failures += len(records)
        return [replace(record, request=None) if adopted else record for record in records]

    def _send_again(self, packed: PackedRequest, failure: Failure) -> bool:
        """Whether the failure ends no line: the request was withdrawn, or it is not known which prompt failed."""
        stopping = self._status.stopping is not None
        if failure.cause is Cause.CANCELLED:
            if not stopping:
                self._batcher.put_back(packed.pack_key, [packed.slices])
            return True
        if failure.cause is Cause.TIMEOUT:
            self._note_timeout(packed)
        smaller = split_failed(packed, failure)
        if not smaller:
            return False
        self._status.split += 1
        if failure.cause is Cause.BUDGET:
            self._sizer.max_prompts = max(1, len(packed.slices) // 2)
        if not stopping:
            suspect = packed.pack_key.suspect or failure.cause is Cause.WORKER_LOST
            self._batcher.put_back(replace(packed.pack_key, suspect=suspect), smaller)
        return True

    def _count(self, packed: PackedRequest, outcome: Outcome) -> None:
        status, attempts = self._status, attempts_since(outcome, self._began)
        status.requests += 1
        status.packed += packed.lines > 1 and attempts > 0
        status.attempts += attempts
        status.rate_limited += outcome.rate_limited
        status.unmetered_tokens += outcome.unmetered_tokens
        for cause, count in outcome.retries.items():
            status.retries[cause] = status.retries.get(cause, 0) + count
        usage = (outcome.completion or {}).get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("total_tokens"), int):
            status.tokens += usage["total_tokens"]

    def _learn(self, packed: PackedRequest, outcome: Outcome) -> None:
        if outcome.attempts == 1 and outcome.provider_s > 0:
            ended = outcome.ended_at or time.time()
            self._sizer.learn(packed.pack_key, packed.choices, ended - outcome.provider_s, ended)
        if outcome.retries.get(Cause.TIMEOUT):
            self._note_timeout(packed)

    def _note_timeout(self, packed: PackedRequest) -> None:
        if len(packed.slices) > 1:
            self._sizer.latency(packed.pack_key.model).timed_out(packed.pack_key.max_tokens, packed.choices)
