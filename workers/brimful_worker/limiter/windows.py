"""The numbers of a limiter, checked, and the admissions that keep them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from brimful.errors import UsageError
from brimful_worker.admission import Limits
from brimful_worker.limiter.errors import InvalidLimit

NO_SLOTS = 100_000
"""Slots of a limiter that has no such limit."""


@dataclass(frozen=True, slots=True)
class Window:
    """At most ``starts`` starts, and at most ``tokens`` tokens, in any ``seconds`` seconds. None = no such limit.

    Raises InvalidLimit for numbers that cannot be limits.
    """

    starts: int | None = None
    seconds: float = 60.0
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.starts is None and self.tokens is None:
            raise InvalidLimit("a window limits nothing: set its starts, its tokens, or both")
        _check_count("starts", self.starts)
        _check_count("tokens", self.tokens)
        if not _is_number(self.seconds) or not 0.001 <= self.seconds < math.inf:
            raise InvalidLimit(f"seconds = {self.seconds!r}: a window takes a number of at least 0.001 seconds")


@dataclass(frozen=True, slots=True)
class Timing:
    """What does not limit, but says how the limits are kept; see :class:`brimful_worker.admission.Limits`."""

    lease_s: float = 8.0
    cooldown_s: float = 1.0
    guard_s: float | None = None
    circuit_breaker: int = 0


def check_name(name: str) -> None:
    """Raises InvalidLimit if ``name`` cannot be part of keys in Redis."""
    if not isinstance(name, str) or not name or any(c in name for c in "{}") or not name.isprintable():
        raise InvalidLimit(f"name = {name!r}: takes printable text without braces, such as the name of a service")


def admissions(
    name: str, slots: int | None, windows: Iterable[Window], timing: Timing
) -> list[tuple[str, Window | None, Limits]]:
    """Key tag, window and limits of each admission, in the order in which a request passes them.

    The first has the slots and the longest window; each further one has a shorter window. A start in the longer windows
    may wait for the shorter ones, so their guards are wider by the shorter windows' lengths.

    Raises InvalidLimit for numbers that cannot be limits.
    """
    check_name(name)
    _check_count("slots", slots)
    ordered = sorted(windows, key=lambda window: -window.seconds)
    if slots is None and not ordered:
        raise InvalidLimit("the limiter limits nothing: set slots, starts or windows")
    lengths = [window.seconds for window in ordered]
    if len(set(lengths)) < len(lengths):
        raise InvalidLimit(f"two windows of the same length ({lengths} s): put their limits into one")
    found: list[tuple[str, Window | None, Limits]] = []
    for place, window in enumerate(ordered or [None]):
        limits = _limits(NO_SLOTS if place or slots is None else slots, window, timing)
        shorter = sum(lengths[place + 1 :])
        if shorter:
            limits = replace(limits, guard_s=limits.guard_s + shorter)
        try:
            limits.fields()
        except UsageError as error:
            raise InvalidLimit(str(error)) from None
        found.append((f"{name}:{window.seconds:g}s" if place and window else name, window, limits))
    return found


def check_tokens(windows: Iterable[Window | None], tokens: int) -> None:
    """Raises InvalidLimit for a request whose tokens no window could ever have room for."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise InvalidLimit(f"tokens = {tokens!r}: takes a whole number from 0 on")
    for window in windows:
        if window is not None and window.tokens is not None and tokens > window.tokens:
            raise InvalidLimit(
                f"tokens = {tokens}: more than the {window.tokens} of a window of {window.seconds:g} s, "
                "so that it would wait for ever"
            )


def check_timeout(timeout_s: float | None) -> None:
    """Raises InvalidLimit for a timeout that is not a number of seconds."""
    if timeout_s is not None and (not _is_number(timeout_s) or not timeout_s >= 0):
        raise InvalidLimit(f"timeout_s = {timeout_s!r}: takes seconds from 0 on, or None to wait for ever")


def _limits(slots: int, window: Window | None, timing: Timing) -> Limits:
    for name in ("lease_s", "cooldown_s", "guard_s"):
        value = getattr(timing, name)
        if value is not None and (not _is_number(value) or not 0 <= value < math.inf):
            raise InvalidLimit(f"{name} = {value!r}: takes seconds from 0 on")
    if isinstance(timing.circuit_breaker, bool) or not isinstance(timing.circuit_breaker, int):
        raise InvalidLimit(f"circuit_breaker = {timing.circuit_breaker!r}: takes a whole number from 0 on")
    limits = Limits(
        slots=slots,
        starts=window.starts if window else None,
        tokens=window.tokens if window else None,
        window_s=window.seconds if window else 60.0,
        lease_s=timing.lease_s,
        cooldown_s=timing.cooldown_s,
        circuit_breaker=timing.circuit_breaker,
    )
    return limits if timing.guard_s is None else replace(limits, guard_s=timing.guard_s)


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidLimit(f"{name} = {value!r}: takes a whole number of at least 1, or None for no such limit")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
