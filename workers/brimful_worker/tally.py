"""What a request has taken so far: counts and times, until they become its outcome."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from brimful.outcome import Cause, Failure, Outcome


class Tally:
    """One request's. All times are seconds."""

    __slots__ = ("attempts", "provider_s", "retries", "retrying_s", "started_at", "waited_s")

    def __init__(self) -> None:
        self.attempts = 0
        self.retries: Counter[Cause] = Counter()
        self.waited_s = 0.0
        self.provider_s = 0.0
        self.retrying_s = 0.0
        self.started_at: float | None = None

    def on_wire(self) -> None:
        """A request is being written."""
        self.attempts += 1
        if self.started_at is None:
            self.started_at = time.time()

    def outcome(
        self,
        name: str,
        *,
        worker: str,
        completion: dict[str, Any] | None = None,
        failure: Failure | None = None,
    ) -> Outcome:
        """Exactly one of ``completion`` and ``failure`` is given."""
        return Outcome(
            id=name,
            completion=completion,
            failure=failure,
            attempts=self.attempts,
            retries={cause.value: count for cause, count in self.retries.items()},
            waited_s=round(self.waited_s, 6),
            provider_s=round(self.provider_s, 6),
            retrying_s=round(self.retrying_s, 6),
            started_at=self.started_at,
            ended_at=time.time(),
            worker=worker,
        )
