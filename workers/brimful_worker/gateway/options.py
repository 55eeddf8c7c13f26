"""The settings of the mock gateway. All but ``faults``' seed can change while it runs (``POST /options``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brimful.errors import SettingError

_Count = Annotated[int, Field(ge=1)]
_LONGEST_TAIL = 100.0
_Seconds = Annotated[float, Field(ge=0)]


class GatewayOptions(BaseModel):
    """The defaults are documented on the ACS pages, except those marked "our choice"."""

    model_config = ConfigDict(extra="forbid")

    slots: _Count | None = 16
    """Concurrent requests; None is unlimited. ("Batch rollouts")"""
    waiters: int = Field(64, ge=0)
    """Requests that may wait for a slot; one more is refused with 429 ``queue_full``. ("Batch rollouts")"""
    starts: _Count | None = 600
    """Starts in any window; one more is refused with 429 ``rate_limited``. None is unlimited. ("Batch rollouts")

    A request with an accepted key counts, whatever its outcome, unless the window refused it. (our choice)"""
    window_s: float = Field(60.0, ge=0.001)
    polls_count: bool = False
    """Whether polls, results and cancellations of Jobs count as starts. (our choice)"""

    latency_s: _Seconds = 0.2
    """Seconds of every request, before its tokens."""
    per_token_s: _Seconds = 0.01
    """Seconds per requested token (``max_tokens``) of one choice."""
    batch_factor: float = Field(0.02, ge=0)
    """What each further choice adds: the tokens' time x (1 + batch_factor x (choices - 1))."""
    proportional: bool = False
    """Multiply the latency by the number of choices: a provider on which packing does not pay."""
    jitter: float = Field(0.0, ge=0)
    """Multiply the latency by a random factor in 1 +- jitter."""
    tail: float = Field(0.0, ge=0, le=2)
    """A heavy tail: multiply the latency of each choice by u^-tail (at most 100), where u is uniform in (0, 1]; a
    request takes as long as its slowest choice. At 0.5, every hundredth choice takes over 10 times as long."""

    shared_tokens_per_s: float | None = Field(None, gt=0)
    """Tokens a second that all running requests share, as those of one local server; replaces ``per_token_s``."""

    models: tuple[str, ...] = ("llama-8b", "llama-70b", "gpt-5.5")
    """Known models; empty accepts every one."""
    keys: tuple[str, ...] = ()
    """Accepted keys; empty accepts every key that is not empty."""
    key_headers: tuple[str, ...] = ("api-key", "x-portkey-api-key")
    """Headers that may hold the key in place of ``Authorization: Bearer``: those of the built-in profiles."""
    max_request_tokens: _Count | None = 32_000
    """The maximum of prompts x n x max_tokens, else 400. ("Batch rollouts")"""
    max_tokens_required: bool = True
    """400 for several prompts or n > 1 without ``max_tokens``. ("Batch rollouts")"""

    budget: int | None = Field(None, ge=0)
    """Tokens that the key has; None is unlimited."""
    budget_status: int = Field(402, ge=400)
    """Status of a request whose hold does not fit, with the code ``insufficient_quota``. (our choice)"""

    ignore_n: bool = False
    """Answer with one choice a prompt, whatever ``n`` is, as some servers do."""
    usage: Literal["true", "missing", "zero", "one_choice"] = "true"
    """What an answer's usage says: the truth, nothing, zeros, or the tokens of the first choice only."""
    reasoning: Literal["none", "reasoning", "reasoning_content"] = "none"
    """The field of a chat message that holds reasoning, which takes half of ``max_tokens``."""

    retry_after: Literal["seconds", "fraction", "ms", "date", "none"] = "seconds"
    """The form in which a 429 names the time to wait, until the window has room or 1 s for a full queue. ``ms`` is the
    header ``retry-after-ms``."""

    rate_headers: Literal["none", "openai", "anthropic"] = "none"
    """Whose headers state the limit on starts, what is left of it, and when it is whole again."""

    disconnect: Literal["free", "finish"] = "free"
    """Whether a client that disconnects frees its slot at once or when its request would have finished."""

    faults: Any = ""
    """Faults to inject, as in ``500:0.05,reset:x2``, or a list of rules; see :mod:`.faults.rules`."""
    seed: int = 0
    """Seed of the randomness of faults, jitter and tail."""
    text: Literal["english", "unicode"] = "english"
    """``unicode`` mixes line breaks of every kind, quotes, emoji and lone surrogates among the words."""

    result_ttl_s: _Seconds = 86_400.0
    """The result of a finished Job expires after this time."""
    usage_pending_s: _Seconds = 0.0
    """Time after its end for which a Job is ``usage_pending`` and its result has no usage."""

    arrivals_kept: int = Field(100_000, ge=0)
    """How many of the latest arrivals the request log lists one by one."""
    track_prompts: bool = True
    """Whether the request log counts per prompt (about 200 bytes for each distinct one)."""
    max_body_bytes: _Count = 64 * 2**20

    def __init__(self, **values: Any) -> None:
        """Raises SettingError naming the option."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            reason = f"{fault['msg'][0].lower()}{fault['msg'][1:]}, not {fault['input']!r}"
            if fault["type"] == "extra_forbidden":
                reason = f"no such option; the options are {', '.join(sorted(type(self).model_fields))}"
            raise SettingError(f"mock gateway: {fault['loc'][0]}: {reason}") from None

    def change(self, changes: dict[str, Any]) -> None:
        """Apply all of ``changes``, or raise SettingError and apply none."""
        checked = GatewayOptions(**{**vars(self), **changes})
        for name in changes:
            setattr(self, name, getattr(checked, name))

    def seconds(self, *, max_tokens: int, choices: int, random: float = 0.5, tail: float = 0.0) -> float:
        """Latency of a request for ``choices`` = prompts x n of ``max_tokens`` each. ``random`` in [0, 1) is jitter;
        ``tail`` in [0, 1) says how slow the slowest choice is: the request's place among all of this size."""
        if self.proportional:
            seconds = (self.latency_s + self.per_token_s * max_tokens) * choices
        else:
            seconds = self.latency_s + self.per_token_s * max_tokens * (1 + self.batch_factor * (choices - 1))
        seconds *= 1 + self.jitter * (2 * random - 1)
        if self.tail:
            least_u = max(1 - tail ** (1 / choices), 1e-9)  # of so many choices
            seconds *= min(least_u**-self.tail, _LONGEST_TAIL)
        return max(0.0, seconds)
