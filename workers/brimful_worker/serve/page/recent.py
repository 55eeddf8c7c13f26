"""What one front door answered lately: counts since it started, by caller, and its last failures. No prompts."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from brimful.outcome import Outcome

_FAILURES = 30
_CODE = 64
"""Characters of a code, which may be the provider's."""


class Recent:
    """What one front-door process has answered."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        """By caller."""
        self.failed: Counter[str] = Counter()
        self.tokens = 0
        """Prompt and completion tokens by the provider's usage."""
        self.throttled = 0
        """Answers of 429, also those after which another attempt succeeded."""
        self._failures: deque[dict[str, Any]] = deque(maxlen=_FAILURES)

    def ended(self, caller: str, outcome: Outcome) -> None:
        """A request was sampled. Its failure, if it is one, is noted by :meth:`refused`."""
        self.throttled += outcome.rate_limited
        if outcome.completion is None:
            return
        self.answered[caller] += 1
        usage = outcome.completion.get("usage")
        for kind in ("prompt_tokens", "completion_tokens"):
            tokens = usage.get(kind) if isinstance(usage, dict) else None
            self.tokens += tokens if isinstance(tokens, int) and tokens > 0 else 0

    def refused(self, caller: str, status: int, code: str | None, endpoint: str) -> None:
        """A request ended with an error."""
        self.failed[caller] += 1
        self._failures.append(
            {
                "at": time.time(),
                "caller": caller,
                "endpoint": endpoint,
                "status": status,
                "code": (code or "invalid_request")[:_CODE],
            }
        )

    def failures(self) -> list[dict[str, Any]]:
        """The newest first: ``at`` (Unix seconds), ``caller``, ``endpoint``, ``status`` (HTTP), ``code``."""
        return list(reversed(self._failures))

    def callers(self, turns: Iterable[tuple[str, str, bool]]) -> list[dict[str, Any]]:
        """``turns``: caller, workload and whether it is sent, of each request under way. The busiest first."""
        waiting: Counter[tuple[str, str]] = Counter()
        sending: Counter[str] = Counter()
        for caller, workload, sent in turns:
            if sent:
                sending[caller] += 1
            else:
                waiting[caller, workload] += 1
        names = {*self.answered, *self.failed, *sending, *(caller for caller, _ in waiting)}
        found = [
            {
                "caller": name,
                "interactive": waiting[name, "interactive"],
                "batch": waiting[name, "batch"],
                "sending": sending[name],
                "answered": self.answered[name],
                "failed": self.failed[name],
            }
            for name in names
        ]
        return sorted(found, key=lambda each: (-each["interactive"] - each["batch"], -each["answered"], each["caller"]))
