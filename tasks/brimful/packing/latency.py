"""How long a request takes, learnt from those that ended. Pure arithmetic.

Model: ``seconds = a + b x max_tokens + c x max_tokens x choices``, with a, b, c >= 0: a fixed part, the tokens of one
choice, and what each further choice adds. Fitted by least squares to the last requests, each error relative to the
latency; outliers (a hang, a slow server) get less weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

UNKNOWN_TOKENS = 256
"""Assumed for ``max_tokens`` where a request leaves it to the provider."""
_KEPT = 256
"""Samples."""
_UNKNOWN_S = 0.01
"""Seconds per token and choice assumed before the first sample."""
_FITS = 3
"""Fits in a row, each with the outliers of the one before weighted down."""
_OUTLIER = 2.5
"""Errors above this many median errors lose weight."""
_SWEEPS = 300


class RequestTime(NamedTuple):
    """Seconds that a request takes, by its number of prompts."""

    fixed_s: float
    prompt_s: float

    def seconds(self, prompts: int) -> float:
        return self.fixed_s + self.prompt_s * prompts

    def prompts_within(self, seconds: float, most: int) -> int:
        """The most prompts, up to ``most``, of a request that takes no longer than ``seconds``; 0 = not even one."""
        left = seconds - self.fixed_s + 1e-9
        if left >= self.prompt_s * most:
            return most
        return int(left / self.prompt_s) if left > 0 else 0


class Latency:
    """The latency of one model. The size of a request is ``choices x max_tokens``."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, float]] = deque(maxlen=_KEPT)
        self._fit = (0.0, 0.0, _UNKNOWN_S)
        self._since_fit = 0
        self._sizes: set[int] = set()
        self._successes = self._timeouts = 0
        self.largest = 0
        """The largest size that succeeded."""
        self.ceiling: int | None = None
        """Larger requests time out too often; None = no such size is known."""

    def add(self, max_tokens: int | None, choices: int, seconds: float) -> None:
        """A request succeeded at its first attempt."""
        tokens = max_tokens or UNKNOWN_TOKENS
        self._samples.append((tokens, choices, max(seconds, 1e-4)))
        self._sizes.add((tokens * choices).bit_length())
        self.largest = max(self.largest, tokens * choices)
        self._since_fit += 1
        self._successes += 1

    def timed_out(self, max_tokens: int | None, choices: int) -> None:
        """A request of several choices ran into its timeout: unless that is rare, such sizes are avoided."""
        self._timeouts += 1
        if 3 * self._timeouts > self._successes:
            size = (max_tokens or UNKNOWN_TOKENS) * choices
            self.ceiling = min(self.ceiling or size, size) // 2
            self._timeouts = self._successes = 0

    @property
    def seen(self) -> bool:
        """Whether any request has succeeded."""
        return bool(self._samples)

    @property
    def known(self) -> bool:
        """Whether sizes that were not seen can be predicted: three sizes have been seen, each twice the one before."""
        return len(self._sizes) >= 3

    def request_time(self, max_tokens: int | None, n: int) -> RequestTime:
        """For requests with ``n`` choices per prompt. Until it is known: the worst case, in proportion to the size."""
        tokens = max_tokens or UNKNOWN_TOKENS
        # A fit costs more with more samples, and each further sample teaches less.
        if self._since_fit > len(self._samples) // 4:
            self._refit()
        fixed, token, choice_token = self._fit
        return RequestTime(fixed + token * tokens, choice_token * tokens * n)

    def _refit(self) -> None:
        self._since_fit = 0
        samples = list(self._samples)
        if not self.known:
            self._fit = (0.0, 0.0, median(seconds / (tokens * choices) for tokens, choices, seconds in samples))
            return
        weights = [1.0] * len(samples)
        for _ in range(_FITS):
            self._fit = a, b, c = _least_squares(samples, weights)
            errors = [abs((a + b * t + c * t * k) / seconds - 1) for t, k, seconds in samples]
            scale = max(_OUTLIER * median(errors), 0.02)
            weights = [1.0 if error <= scale else scale / error for error in errors]


def _least_squares(samples: Sequence[tuple[int, int, float]], weights: Sequence[float]) -> tuple[float, float, float]:
    """Weighted least squares of the relative error with coefficients >= 0, by coordinate descent.

    The last coefficient comes first: a cost that the samples leave undecided counts as growing with the choices.
    """
    gram, moments = [[0.0] * 3 for _ in range(3)], [0.0] * 3
    for (tokens, choices, seconds), weight in zip(samples, weights, strict=True):
        row = (1 / seconds, tokens / seconds, tokens * choices / seconds)
        for i in range(3):
            moments[i] += weight * row[i]
            for j in range(3):
                gram[i][j] += weight * row[i] * row[j]
    found = [0.0, 0.0, 0.0]
    for _ in range(_SWEEPS):
        for i in (2, 1, 0):
            others = sum(gram[i][j] * found[j] for j in range(3) if j != i)
            found[i] = max(0.0, (moments[i] - others) / gram[i][i])
    return found[0], found[1], found[2]
