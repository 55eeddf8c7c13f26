"""Every setting of the mock gateway. Nearly all can change while it runs (``Gateway.set``, ``POST /options``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful_worker.gateway.faults.faults import Rule


class OptionError(ValueError):
    """A setting is unknown or has a value that it cannot have; the message names it."""


@dataclass(slots=True)
class GatewayOptions:
    """Defaults are what the ACS pages document; what they leave open is marked "our choice"."""

    slots: int | None = 16
    """Requests active at once; None has no limit."""
    waiters: int = 64
    """Requests that may wait for a slot; one more is refused with 429 ``queue_full``."""
    starts: int | None = 600
    """Starts in any window; one more is refused with 429 ``rate_limited``. None has no limit."""
    window_s: float = 60.0
    refused_count: bool = False
    """Whether a request refused as ``rate_limited`` takes a place in the window too (our choice: it does not; every
    other request with an accepted key does, whatever becomes of it)."""
    polls_count: bool = False
    """Whether polls, results and cancels of Jobs are starts (our choice: they are not)."""

    latency_s: float = 0.2
    """Seconds of every request, before its tokens."""
    per_token_s: float = 0.01
    """Seconds per token asked of one choice (``max_tokens``)."""
    batch_factor: float = 0.02
    """How much each further choice adds: tokens' time x (1 + batch_factor x (choices - 1))."""
    proportional: bool = False
    """Latency x choices: a provider on which packing does not pay."""
    jitter: float = 0.0
    """Latency x a random factor in 1 +- jitter."""

    models: tuple[str, ...] = ("llama-8b", "llama-70b", "gpt-5.5")
    """Known models; empty knows every one."""
    keys: tuple[str, ...] = ()
    """Accepted keys; empty accepts any bearer that is not empty."""
    max_request_tokens: int | None = 32_000
    """prompts x n x max_tokens at most, else 400."""
    max_tokens_required: bool = True
    """400 for several prompts or n > 1 without ``max_tokens``."""
    default_max_tokens: int = 16
    """Where ``max_tokens`` is missing (our choice)."""

    budget: int | None = None
    """Tokens that the key has; None has no end."""
    budget_status: int = 402
    """Status of a request whose hold does not fit, code ``insufficient_quota`` (our choice; others answer 429)."""

    retry_after: str = "seconds"
    """How a 429 tells the time: seconds, fraction, ms (``retry-after-ms``), date or none."""
    retry_after_s: float | None = None
    """The time told; None is when the window has room again, or 1 s for a full queue."""

    disconnect: str = "free"
    """A client that goes away frees its slot at once (``free``), or when its work would have ended (``finish``)."""
    keepalive_s: float = 75.0
    """Idle connections are closed after it."""

    faults: str | Sequence[Rule] = ""
    """What goes wrong, as in ``500:0.05,reset:x2``; see :mod:`.faults`."""
    seed: int = 0
    """Seeds the faults' and the jitter's randomness."""
    text: str = "english"
    """``english``, or ``unicode``: line breaks of every kind, quotes, emoji and lone surrogates among the words."""
    natural_tokens: tuple[int, int] = (24, 400)
    """Texts end by themselves (``stop``) after a number of tokens between these two, if ``max_tokens`` lets them."""

    job_queued_s: float = 0.0
    """A Job stays queued for at least this long."""
    result_ttl_s: float = 86_400.0
    """A finished Job's result expires after it."""
    usage_pending_s: float = 0.0
    """For so long after its end a Job is ``usage_pending`` and its result has no usage."""

    arrivals_kept: int = 100_000
    """The latest arrivals that the ledger lists one by one."""
    track_prompts: bool = True
    """Whether the ledger counts per prompt (some 200 bytes for each different one)."""
    max_body_bytes: int = 64 * 2**20

    def check(self) -> None:
        """Raises OptionError."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < least):
                raise OptionError(f"{name}: must be a number of at least {least}, not {value!r}")
        for name, known in _KNOWN.items():
            if getattr(self, name) not in known:
                raise OptionError(f"{name}: {getattr(self, name)!r} is none of {', '.join(known)}")

    def change(self, changes: dict[str, Any]) -> None:
        """All of ``changes``, or none. Raises OptionError."""
        names = {field.name for field in fields(self)}
        for name in changes:
            if name not in names:
                raise OptionError(f"{name}: no such option; there are {', '.join(sorted(names))}")
        before = {name: getattr(self, name) for name in changes}
        for name, value in changes.items():
            setattr(self, name, tuple(value) if isinstance(before[name], tuple) and isinstance(value, list) else value)
        try:
            self.check()
        except OptionError:
            for name, value in before.items():
                setattr(self, name, value)
            raise


_LEAST = {
    "slots": 1,
    "waiters": 0,
    "starts": 1,
    "window_s": 0.001,
    "latency_s": 0,
    "per_token_s": 0,
    "batch_factor": 0,
    "jitter": 0,
    "max_request_tokens": 1,
    "default_max_tokens": 1,
    "budget": 0,
    "budget_status": 400,
    "retry_after_s": 0,
    "keepalive_s": 0.001,
    "job_queued_s": 0,
    "result_ttl_s": 0,
    "usage_pending_s": 0,
    "arrivals_kept": 0,
    "max_body_bytes": 1,
}
_KNOWN = {
    "retry_after": ("seconds", "fraction", "ms", "date", "none"),
    "disconnect": ("free", "finish"),
    "text": ("english", "unicode"),
}
