"""One key's admission as Redis holds it, read with plain commands; and its limits, which an operator may change.

Needs the key's tag, not the API key; :func:`known_tags` lists the tags. Clients decode answers to str. Everything here
raises redis.RedisError where Redis fails.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import redis as redis_sync
import redis.asyncio as redis_async
from redis.exceptions import ResponseError

from brimful.errors import UsageError
from brimful.limits import (
    SETTABLE,
    Learnt,
    cause_and_cost,
    following_guard,
    learnt_from_redis,
    limits_from_redis,
    slots_in_force,
    stored,
    too_far,
    with_learnt,
)
from brimful.packing.slot_model import Limits
from brimful.state.keys import FLEETS, TAGS, admission_keys, everyone_channel, health_key
from brimful.state.provider_health import ProviderHealth, parse_health

UNREGISTERED = "?"
"""The fleet of a worker of a version before fleets: it serves the unnamed one, and registers no key for it."""
IN_USE_S = 60.0
"""Seconds without a command after which a worker counts as gone. A running one sends several in a lease."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker process, as it last described itself."""

    process: str
    name: str
    host: str
    pid: int
    held: int
    """Slots it holds."""
    interactive: int
    """Its coroutines that wait for a slot, by workload."""
    batch: int
    heard_s: float
    """Seconds since its last command to Redis."""
    version: str = "?"
    """Of brimful; ``?`` = of a version that did not say."""
    fleet: str | None = ""
    """The name of the fleet whose tasks it runs; None if it is no worker, :data:`UNREGISTERED` if it does not say."""
    rtt_ms: int = 0
    """Its round trip to Redis, rounded; 0 = it does not say."""
    lag_ms: int = 0
    """For how much longer each of its starts counts in the window, since Redis is far away."""
    places: int | None = None
    """Tasks that it runs at once; None if it does not say."""


@dataclass(frozen=True, slots=True)
class Status:
    """One key's admission. ``None`` = no such limit."""

    tag: str
    epoch: str | None
    """None: no process has ever used this key here."""
    rebuilding: bool
    """Redis lost its memory; nothing is granted until the workers have reported their leases."""
    slots: int | None
    """As set; where they are learnt (``slots_auto``), those in force."""
    slots_used: int
    cooling: int
    """Used slots whose request has ended a moment ago: those of aborted requests for a cooldown, others for less."""
    starts: int | None
    starts_used: int
    window_s: float
    tokens: int | None
    tokens_used: int
    budget: int | None
    budget_spent: int
    waiting: dict[str, int]
    """Workload → coroutines of all processes that wait for a slot."""
    pause_s: float
    """Seconds until the pause ends; 0 = not paused."""
    pause_reason: str | None
    circuit_breaker: str
    """``closed``; ``open`` after failures in a row; ``probing``: one request tests whether the provider is back."""
    failures: int
    """Failures in a row."""
    limits: dict[str, float]
    """All limits in force, by the names in :data:`SETTABLE`."""
    overridden: tuple[str, ...]
    """Names of the limits that ``limits set`` has set."""
    workers: tuple[WorkerStatus, ...] = field(default=())
    next_start_s: float = 0.0
    """Seconds until a full window takes another start; 0 = at once."""
    provider: ProviderHealth | None = None
    """How it answered last; None: it was not asked lately."""
    brought: dict[str, float] = field(default_factory=dict)
    """The limits of the workers' own settings, in force where none is overridden; empty before the first worker."""
    learnt: dict[str, Learnt] = field(default_factory=dict)
    """``slots`` and ``starts`` → the lower limit in force, since the provider refuses more."""

    def late_answers(self) -> tuple[str, str] | None:
        """Why Redis's answers are late, ``distance`` or ``load``, and what that costs, in words. None: nothing."""
        far = max(self.workers, key=lambda worker: worker.lag_ms, default=None)
        if far is None or not far.lag_ms or not (self.starts or self.tokens):
            return None
        cause, cost = cause_and_cost(self.window_s, self.limits.get("guard_s", 0.0), far.rtt_ms, far.lag_ms)
        return cause, f"{far.name}: {cost}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def known_tags(client: redis_sync.Redis) -> list[str]:
    """The key tags in this Redis, the last one that a worker started with first."""
    tags: Any = client.zrevrange(TAGS, 0, -1)
    return list(tags)


def tags_in_use(client: redis_sync.Redis, fleet: str = "") -> list[str]:
    """The keys that the fleet's workers use now: their tags."""
    return [tag for tag in known_tags(client) if _in_use(read_status(client, tag), fleet)]


async def tag_in_use(client: redis_async.Redis, fleet: str = "") -> str | None:
    """The tag of the fleet's key. None if no key is registered for it, and no key's or several keys' workers run.

    Without a registration, as by workers of a version before fleets, it is the tag that workers use now, or the only
    one there is. Tags are never removed: after a rotation of the key, the old one's is still there.
    """
    if registered := await client.hget(FLEETS, fleet):
        return str(registered).partition(" ")[0]
    tags: Any = await client.zrevrange(TAGS, 0, -1)
    if len(tags) > 1 or fleet:
        found = [await read_status_async(client, tag) for tag in tags]
        tags = [status.tag for status in found if _in_use(status, fleet)]
    return str(tags[0]) if len(tags) == 1 else None


def _in_use(status: Status, fleet: str) -> bool:
    served = (fleet,) if fleet else ("", UNREGISTERED)
    return any(worker.heard_s < IN_USE_S and worker.fleet in served for worker in status.workers)


def read_status(client: redis_sync.Redis, tag: str) -> Status:
    """A consistent reading (MULTI)."""
    _read(pipe := client.pipeline(transaction=True), tag)
    return _status(tag, pipe.execute())


async def read_status_async(client: redis_async.Redis, tag: str) -> Status:
    """As :func:`read_status`."""
    _read(pipe := client.pipeline(transaction=True), tag)
    return _status(tag, await pipe.execute())


async def live_limits(client: redis_async.Redis, fleet: str = "") -> Limits | None:
    """The limits in force, learnt or set; None before the first worker, and if it is unclear which key's are meant."""
    tag = await tag_in_use(client, fleet)
    if tag is None:
        return None
    keys, pipe = admission_keys(tag), client.pipeline(transaction=True)
    for name in ("defaults", "limits", "state"):
        pipe.hgetall(keys[name])
    defaults, overrides, state = await pipe.execute()
    limits, lines = with_learnt(limits_from_redis({**defaults, **overrides}), state)
    slots, window_s = int(limits.get("slots", 0)), limits.get("window_s", 0.0)
    return Limits(slots, int(limits.get("starts", 0)) or None, window_s, lines) if slots and window_s else None


def set_limits(client: redis_sync.Redis, tag: str, **limits: float | None) -> dict[str, float]:
    """Change limits for the whole fleet at once; returns those in force.

    Names are :data:`SETTABLE`; None restores the default, 0 removes the limit. A guard that nobody chose follows the
    window. Raises UsageError naming a limit that is unknown, out of range, or too short for a worker's distance.
    """
    before = read_status(client, tag)
    limits |= following_guard(limits, before.limits, before.brought)
    for worker in before.workers:
        if (lease_s := limits.get("lease_s")) and (fault := too_far(worker.rtt_ms / 1000, lease_s)):
            raise UsageError(f"worker {worker.name}: {fault}")
    if unknown := sorted(set(limits) - set(SETTABLE)):
        raise UsageError(f"unknown limit {unknown[0]!r}: known are {', '.join(SETTABLE)}")
    key = admission_keys(tag)["limits"]

    def write(pipe: Any) -> None:
        (seconds, micros), known = pipe.time(), int(pipe.hget(key, "rev") or 0)
        pipe.multi()
        for name, value in limits.items():
            if value is None:
                pipe.hdel(key, SETTABLE[name])
            else:
                pipe.hset(key, SETTABLE[name], str(stored(name, value)))
        # Higher than that of any limits set before, which processes may bring back after a loss of memory.
        pipe.hset(key, "rev", max(known + 1, seconds * 1000 + micros // 1000))
        pipe.publish(everyone_channel(tag), json.dumps({"limits": True}))

    try:
        client.transaction(write, key)
    except ResponseError as error:
        raise UsageError(f"Redis refused the limits: {error}") from None
    return read_status(client, tag).limits


def _read(pipe: Any, tag: str) -> None:
    keys = admission_keys(tag)
    pipe.time()
    for name in ("state", "defaults", "limits", "workers"):
        pipe.hgetall(keys[name])
    for name in ("slots", "starts", "heard", "interactive", "batch"):
        pipe.zrange(keys[name], 0, -1, withscores=True)
    pipe.hgetall(health_key(tag))


def _status(tag: str, answers: list[Any]) -> Status:
    (seconds, micros), state, defaults, overrides, described, slots, starts, heard, interactive, batch, health = answers
    now = int(seconds) * 1000 + int(micros) // 1000 + int(state.get("skew", 0))
    limits = limits_from_redis({**defaults, **overrides})
    span = round(1000 * (limits.get("window_s", 0) + limits.get("guard_s", 0)))
    live = [ticket for ticket, expires in slots if expires > now]
    holders = Counter(_process(ticket) for ticket in live)
    queued = {
        workload: Counter(_process(ticket) for ticket, _ in tickets)
        for workload, tickets in (("interactive", interactive), ("batch", batch))
    }
    workers = []
    for process, at in heard:
        said = json.loads(described.get(process, "{}"))
        known = {name: said.get(name, default) for name, default in _DESCRIBED.items()}  # of any version
        for workload, counts in queued.items():
            known[workload] += counts[process]
        worker = WorkerStatus(process=process, held=holders[process], heard_s=max(0.0, (now - at) / 1000), **known)
        workers.append(worker)
    learnt = learnt_from_redis(state, limits, now)
    pause = max("pause", "busy", key=lambda kind: int(state.get(f"{kind}_until", 0)))
    pause_ms = int(state.get(f"{pause}_until", 0)) - now
    most_starts = int(limits.get("starts", 0))
    return Status(
        tag=tag,
        epoch=state.get("epoch"),
        rebuilding="opens_at" in state,
        slots=slots_in_force(limits, learnt),
        slots_used=len(live),
        cooling=sum(ticket.startswith("~") for ticket in live),
        starts=most_starts or None,
        starts_used=sum(at > now - span for _, at in starts) if most_starts else 0,
        window_s=limits.get("window_s", 0),
        tokens=int(limits.get("tokens", 0)) or None,
        tokens_used=int(state.get("tokens_sum", 0)),
        budget=int(limits.get("budget", 0)) or None,
        budget_spent=int(state.get("spent", 0)),
        waiting={workload: sum(getattr(worker, workload) for worker in workers) for workload in queued},
        pause_s=max(0, pause_ms) / 1000,
        pause_reason=state.get(f"{pause}_reason") if pause_ms > 0 else None,
        circuit_breaker="closed" if "tripped" not in state else "probing" if "probe" in state else "open",
        failures=int(state.get("fails", 0)),
        limits=limits,
        overridden=tuple(name for name, key in SETTABLE.items() if key in overrides),
        workers=tuple(sorted(workers, key=lambda worker: worker.name)),
        next_start_s=_next_start_ms([at + span - now for _, at in starts], most_starts) / 1000,
        provider=parse_health(health),
        brought=limits_from_redis(defaults),
        learnt=learnt,
    )


_DESCRIBED: dict[str, Any] = {
    "name": "?",
    "host": "?",
    "pid": 0,
    "version": "?",
    "interactive": 0,
    "batch": 0,
    "fleet": UNREGISTERED,
    "rtt_ms": 0,
    "lag_ms": 0,
    "places": None,
}
"""The fields of a worker's description, and the defaults of those that it lacks."""


def _next_start_ms(left: list[float], starts: int) -> float:
    """``left``: milliseconds until each start leaves the window, rising."""
    within = [ms for ms in left if ms > 0]
    return within[len(within) - starts] if starts and len(within) >= starts else 0.0


def _process(ticket: str) -> str:
    return ticket.partition(".")[0]
