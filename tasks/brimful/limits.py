"""The limits by their names and as Redis stores them; by how much a window is widened; what late answers of Redis cost.

Durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brimful.errors import UsageError

SETTABLE = {
    "slots": "slots",
    "slots_auto": "auto",
    "starts": "starts",
    "window_s": "window_ms",
    "guard_s": "guard_ms",
    "tokens": "tokens",
    "budget": "budget",
    "lease_s": "lease_ms",
    "reserve_slots": "reserve_slots",
    "reserve_starts": "reserve_starts",
    "starvation_s": "age_ms",
    "circuit_breaker": "breaker",
    "slow_start_s": "ramp_ms",
}
"""The limits by the operators' names (counts, and seconds: ``*_s``), and their fields in Redis. 0 = no limit.

Fields keep their first names, which every version reads.
"""
_NO_LIMIT = ("starts", "tokens", "budget", "circuit_breaker")
"""Limits that 0 switches off."""
_LEAST: dict[str, float] = {"slots": 1, "window_s": 0.001, "lease_s": 0.5}
_MOST = 1e12
_LEASE_S = 8.0
"""Where Redis has no limits yet."""


def default_guard_s(window_s: float) -> float:
    """Seconds by which a window of this length is widened, where nobody sets them."""
    return round(0.2 + 0.01 * window_s, 3)


def lease_of(limits: Mapping[str, float]) -> float:
    """Seconds of a lease by a status's limits. An idle process sends a command every three quarters of it."""
    return limits.get("lease_s") or _LEASE_S


REBUILDING = "the key is new here, or Redis lost its memory; nothing starts until all workers have reported"
"""Said by status and doctor."""


def starts_share(window_s: float, guard_s: float, lag_s: float) -> float:
    """The share of the limit on starts that can be reached: each counts for window + guard + lag."""
    return window_s / (window_s + guard_s + lag_s) if window_s > 0 else 1.0


def far_away(rtt_s: float, lag_s: float) -> bool:
    """Whether grants arrive late because of the distance from Redis, rather than because something is busy."""
    return lag_s <= 2 * rtt_s


def describe_cost(window_s: float, guard_s: float, rtt_s: float, lag_s: float) -> str:
    """What late answers of Redis cost, and the remedy: a sentence for status, doctor and the log."""
    share = starts_share(window_s, guard_s, lag_s)
    if far_away(rtt_s, lag_s):
        remedy = "move the workers and Redis nearer to each other"
    else:
        remedy = "some answers came that much later than others: give the worker and Redis more CPU if it stays so"
    return (
        f"a round trip takes {rtt_s * 1000:.0f} ms; a freed slot stays idle for one, and each start counts "
        f"{lag_s * 1000:.0f} ms longer: at most {share:.0%} of the starts (windows of {window_s:g} s); "
        f"{remedy}"
    )


def cause_and_cost(window_s: float, guard_s: float, rtt_ms: int, lag_ms: int) -> tuple[str, str]:
    """``distance``, or ``load`` where Redis is near, and :func:`describe_cost`."""
    rtt_s, lag_s = rtt_ms / 1000, lag_ms / 1000
    return "distance" if far_away(rtt_s, lag_s) else "load", describe_cost(window_s, guard_s, rtt_s, lag_s)


@dataclass(frozen=True, slots=True)
class Learnt:
    """A limit that the workers have learnt from the provider's refusals."""

    limit: int
    age_s: float
    """Seconds since it last changed."""


def learnt_from_redis(state: Mapping[str, str], limits: Mapping[str, float], now_ms: int) -> dict[str, Learnt]:
    """``slots`` and ``starts`` → what was learnt, where it is lower than what is set, or no number is set."""
    found = {}
    for name in ("slots", "starts"):
        level, since = int(state.get(f"{name}_level", 0)), f"{name}_at"
        stated = int(state.get(f"{name}_stated", 0))
        if stated and (not level or stated < level):
            level, since = stated, f"{name}_stated_at"
        none_set = not limits.get(name) or (name == "slots" and limits.get("slots_auto"))
        if level and (none_set or level < limits[name]):
            found[name] = Learnt(level, max(0, now_ms - int(state.get(since, now_ms))) / 1000)
    return found


def described(limits: Mapping[str, float]) -> dict[str, str]:
    """Name → value for operators: ``slots`` → ``8`` or ``auto``, ``tokens`` → ``none``, ``lease`` → ``8 s``."""
    found = {}
    for name, value in limits.items():
        if name == "slots" and limits.get("slots_auto"):
            found[name] = "auto"
        elif name != "slots_auto":
            unit = " s" if name.endswith("_s") else ""
            found[name.removesuffix("_s")] = "none" if value == 0 and name in _NO_LIMIT else f"{value:g}{unit}"
    return found


def set_by_hand(limits: Mapping[str, float], overridden: Iterable[str]) -> dict[str, str]:
    """Those of :func:`described` that ``limits set`` has set."""
    names = {"slots" if name == "slots_auto" else name.removesuffix("_s") for name in overridden}
    return {name: value for name, value in described(limits).items() if name in names}


def slots_in_force(limits: Mapping[str, float], learnt: Mapping[str, Learnt]) -> int | None:
    """The slots as set, or as learnt where no number is set; None before the first worker."""
    if limits.get("slots_auto") and "slots" in learnt:
        return learnt["slots"].limit
    return int(limits["slots"]) if "slots" in limits else None


def learnt_lines(learnt: Mapping[str, Learnt], limits: Mapping[str, float]) -> list[str]:
    """What the provider allows, where that is less than is set."""
    wrong = [name for name in learnt if name != "slots" or not limits.get("slots_auto")]
    return [describe_learnt(name, learnt[name].limit, limits.get(name) or 0) for name in wrong]


def with_learnt(limits: Mapping[str, float], state: Mapping[str, str]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The limits in force, and what of them is learnt, in words."""
    learnt = learnt_from_redis(state, limits, 0)
    lower = {name: found.limit for name, found in learnt.items()}
    return {**limits, **lower}, tuple(learnt_lines(learnt, limits))


def describe_learnt(name: str, learnt: int, given: float) -> str:
    """That the provider allows less of a limit (``slots``, ``starts``) than is set: for status, the log and a run's
    report."""
    span = " in a window" if name == "starts" else ""
    if not given:
        return f"the provider allows {learnt} {name}{span}, and no limit on them is set"
    return f"the provider allows {learnt} {name}{span}, fewer than the {given:g} that are set"


def too_far(rtt_s: float, lease_s: float) -> str | None:
    """What is wrong, and what to do, if leases end before they can be renewed at this distance; else None."""
    if rtt_s <= lease_s / 4:
        return None
    return (
        f"Redis answers after {rtt_s * 1000:.0f} ms, and leases of {lease_s:g} s allow a quarter of that, "
        f"{lease_s / 4 * 1000:.0f} ms: set leases of at least {least_lease_s(rtt_s):g} s (BRIMFUL_LEASE_S, "
        "`brimful limits set --lease`), or move the workers and Redis nearer to each other"
    )


def least_lease_s(rtt_s: float) -> float:
    """The shortest lease for this distance, with some room, in half seconds."""
    return max(1.0, -(-rtt_s * 12 // 1) / 2)


def following_guard(
    new: Mapping[str, float | None], in_force: Mapping[str, float], brought: Mapping[str, float]
) -> dict[str, float | None]:
    """The guard of a new window, where the one in force is the default of the window in force. ``brought``: the limits
    of the workers' own settings."""
    if "window_s" not in new or new.get("guard_s") is not None:
        return {}
    before = brought if "guard_s" in new else in_force
    guard_s, window_s = before.get("guard_s", -1.0), new["window_s"]
    if abs(guard_s - default_guard_s(before.get("window_s", 0.0))) > 0.0015:
        return {}
    return {"guard_s": None if window_s is None else default_guard_s(window_s)}


def limits_to_redis(limits: Mapping[str, float]) -> dict[str, int]:
    """Limits by the operators' names as Redis stores them. Raises UsageError naming a limit that is out of range."""
    return {SETTABLE[name]: stored(name, value) for name, value in limits.items()}


def out_of_range(name: str, value: float) -> str | None:
    """What is wrong with a limit's value; None if it may be set."""
    least = _LEAST.get(name, 0)
    return None if least <= value < _MOST else f"must be a number of at least {least:g}, and below {_MOST:g}"


def stored(name: str, value: float) -> int:
    """One limit as Redis stores it. Raises UsageError if it is out of range."""
    if (fault := out_of_range(name, value)) is not None:
        raise UsageError(f"{name} = {value:g}: {fault}")
    return round(value * 1000) if name.endswith("_s") else int(value)


def limits_from_redis(fields: Mapping[str, Any]) -> dict[str, float]:
    """Redis's fields by the operators' names, durations in seconds. Skips fields that another version has added."""
    found = {name: int(float(fields[key])) for name, key in SETTABLE.items() if key in fields}
    return {name: value / 1000 if name.endswith("_s") else value for name, value in found.items()}
