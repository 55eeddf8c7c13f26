"""How long a request will be on the wire, learnt from those that were. Pure arithmetic.

Model: ``seconds = a + b x max_tokens + c x max_tokens x choices``, a, b, c >= 0: a fixed part, the tokens generated one
after the other, and what each further choice adds. Fitted to the last requests, each error taken relative to the
latency, outliers (a hang, a slow peer) weighed down.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median

_KEPT = 256
_PREDICTIONS = 4096
_UNKNOWN_TOKENS = 256
"""Taken for ``max_tokens`` where a request leaves it to the provider."""
_ROUNDS = 3
"""Of re-weighting."""
_OUTLIER = 2.5
"""Errors beyond this many median errors lose weight."""
_SLOWER = 1.15
"""A size whose requests take this much longer than the fit says is believed rather than the fit."""


class Latency:
    """Of one model. Sizes are in tokens at most: choices x max_tokens."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=_KEPT)
        self._fit: tuple[float, float, float] | None = None
        self._slower: dict[int, float] = {}
        self._predicted: dict[tuple[int, int], float] = {}
        """By tokens and choices, as long as the fit stands: plans ask for the same few again and again."""
        self._buckets: Counter[int] = Counter()
        self._since_fit = 0
        self.learnt = 0
        """Changes whenever a prediction may."""
        self.largest = 0
        """The largest size that came back."""
        self._successes = self._timeouts = 0
        self.ceiling: int | None = None
        """Sizes from which requests timed out too often; None: no such size is known."""

    def add(self, max_tokens: int | None, choices: int, seconds: float) -> None:
        tokens = max_tokens or _UNKNOWN_TOKENS
        if len(self._samples) == _KEPT:
            before, count, _ = self._samples[0]
            bucket = _bucket(before * count)
            self._buckets[bucket] -= 1
            if not self._buckets[bucket]:
                del self._buckets[bucket]
        self._samples.append((float(tokens), choices, max(seconds, 1e-4)))
        self._buckets[_bucket(tokens * choices)] += 1
        self.largest = max(self.largest, tokens * choices)
        self._since_fit += 1
        self._successes += 1
        self.learnt += 1

    def timed_out(self, max_tokens: int | None, choices: int) -> None:
        """A request of several choices ran into its timeout: unless that is rare, such sizes are avoided."""
        self._timeouts += 1
        if 3 * self._timeouts > self._successes:
            size = (max_tokens or _UNKNOWN_TOKENS) * choices
            self.learnt += 1
            self.ceiling = min(self.ceiling or size, size) // 2
            self._timeouts = self._successes = 0

    @property
    def sizes(self) -> int:
        """Distinct sizes (by powers of two) among the samples."""
        return len(self._buckets)

    @property
    def known(self) -> bool:
        """Whether a prediction for other sizes is worth something."""
        return len(self._samples) >= 3 and self.sizes >= 2

    def predict(self, max_tokens: int | None, choices: int) -> float | None:
        """Seconds on the wire; None before the first sample."""
        if not self._samples:
            return None
        # What a fit costs grows with the samples, and what each further one teaches shrinks.
        if self._fit is None or self._since_fit > len(self._samples) // 4:
            self._refit()
        assert self._fit is not None
        tokens = max_tokens or _UNKNOWN_TOKENS
        if (known := self._predicted.get((tokens, choices))) is not None:
            return known
        seconds = _line(self._fit, tokens, choices)
        bucket = _bucket(tokens * choices)
        seconds *= max([factor for size, factor in self._slower.items() if size <= bucket], default=1.0)
        if len(self._predicted) >= _PREDICTIONS:
            self._predicted.clear()
        self._predicted[tokens, choices] = seconds
        return seconds

    def _refit(self) -> None:
        samples = list(self._samples)
        weights = [1.0] * len(samples)
        fit = (0.0, 0.0, 0.0)
        for _ in range(_ROUNDS):
            fit = _solve(samples, weights)
            errors = [abs(_line(fit, t, c) / y - 1) for t, c, y in samples]
            scale = max(_OUTLIER * median(errors), 0.02)
            weights = [1.0 if error <= scale else scale / error for error in errors]
        self._fit, self._since_fit = fit, 0
        self._predicted.clear()
        ratios: dict[int, list[float]] = {}
        for t, c, y in samples:
            ratios.setdefault(_bucket(t * c), []).append(y / max(_line(fit, t, c), 1e-6))
        self._slower = {
            size: factor for size, seen in ratios.items() if len(seen) >= 3 and (factor := median(seen)) > _SLOWER
        }


def _line(fit: tuple[float, float, float], tokens: float, choices: int) -> float:
    return fit[0] + fit[1] * tokens + fit[2] * tokens * choices


def _bucket(size: float) -> int:
    return int(size).bit_length()


def _solve(samples: Sequence[tuple[float, int, float]], weights: Sequence[float]) -> tuple[float, float, float]:
    """Weighted least squares of the relative error; negative coefficients are left out and the others fitted anew."""
    use = [0, 1, 2]
    while True:
        found = _normal_equations(samples, weights, use)
        negative = [column for column, value in zip(use, found, strict=True) if value < 0]
        if not negative or len(use) == 1:
            fit = [0.0, 0.0, 0.0]
            for column, value in zip(use, found, strict=True):
                fit[column] = max(0.0, value)
            return fit[0], fit[1], fit[2]
        use.remove(min(negative, key=lambda column: found[use.index(column)] * (1, 100, 1000)[column]))


def _normal_equations(
    samples: Sequence[tuple[float, int, float]], weights: Sequence[float], use: Sequence[int]
) -> list[float]:
    size = len(use)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for (tokens, choices, seconds), weight in zip(samples, weights, strict=True):
        row = [(1.0, tokens, tokens * choices)[column] / seconds for column in use]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += weight * row[i] * row[j]
            matrix[i][size] += weight * row[i]
    for i in range(size):
        matrix[i][i] *= 1 + 1e-6  # equal max_tokens throughout: a and b cannot be told apart, and need not be
        matrix[i][i] += 1e-12
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(size):
            if k != i and matrix[i][i]:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [x - factor * y for x, y in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] if matrix[i][i] else 0.0 for i in range(size)]
