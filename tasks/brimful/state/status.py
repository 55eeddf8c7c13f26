"""What the admission is doing, read from Redis with plain commands; and the limits, which an operator may change.

No API key is needed: the key's tag is enough, and :func:`known_tags` lists those.
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
from brimful.state.keys import TAGS, admission_keys, everyone_channel

SETTABLE = (
    "slots",
    "starts",
    "window_s",
    "guard_s",
    "tokens",
    "budget",
    "lease_s",
    "reserve_slots",
    "reserve_starts",
    "age_s",
    "breaker",
    "ramp_s",
)
"""The limits by the names operators use; in Redis durations are ``*_ms``. 0 = no such limit."""
_LEAST: dict[str, float] = {"slots": 1, "window_s": 0.001, "lease_s": 0.5}


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One process, as it last described itself."""

    process: str
    name: str
    host: str
    pid: int
    held: int
    """Slots it holds."""
    interactive: int
    """Coroutines of it that wait."""
    batch: int
    heard_s: float
    """Seconds since it last spoke."""


@dataclass(frozen=True, slots=True)
class Status:
    """One key's admission. ``None`` = no such limit."""

    tag: str
    epoch: str | None
    """None: no process has ever used this key here."""
    rebuilding: bool
    """Redis lost its memory; nothing is granted until all processes have said what they hold."""
    slots: int | None
    slots_used: int
    cooling: int
    """Of the used slots, those that rest after an aborted request."""
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
    """Seconds until the pause ends; 0 = none."""
    pause_reason: str | None
    breaker: str
    """``closed``; ``open``: failures in a row tripped it; ``probing``: one request finds out whether it is over."""
    failures: int
    """Failures in a row."""
    limits: dict[str, float]
    """All limits in force, by their operators' names."""
    overridden: tuple[str, ...]
    """Of these, the names that ``limits set`` has set."""
    workers: tuple[WorkerStatus, ...] = field(default=())
    next_start_s: float = 0.0
    """Seconds until the full window has room for a start again; 0 = it has."""
    brought: dict[str, float] = field(default_factory=dict)
    """The limits that the workers brought, which hold where none is set by hand; empty before the first worker."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def known_tags(client: redis_sync.Redis) -> list[str]:
    """Key tags in this Redis, the last used first."""
    tags: Any = client.zrevrange(TAGS, 0, -1)
    return [_text(tag) for tag in tags]


async def known_tags_async(client: redis_async.Redis) -> list[str]:
    return [_text(tag) for tag in await client.zrevrange(TAGS, 0, -1)]


def read_status(client: redis_sync.Redis, tag: str) -> Status:
    """One consistent look (MULTI)."""
    pipe = client.pipeline(transaction=True)
    _ask(pipe, tag)
    return _status(tag, pipe.execute())


async def read_status_async(client: redis_async.Redis, tag: str) -> Status:
    pipe = client.pipeline(transaction=True)
    _ask(pipe, tag)
    return _status(tag, await pipe.execute())


async def read_limits_async(client: redis_async.Redis, tag: str) -> dict[str, float]:
    """The limits in force, as :attr:`Status.limits`; empty before the first worker. It reads nothing that grows."""
    keys = admission_keys(tag)
    pipe = client.pipeline(transaction=True)
    pipe.hgetall(keys["defaults"])
    pipe.hgetall(keys["limits"])
    defaults, overrides = await pipe.execute()
    return _operators(_numbers({**_texts(defaults), **_texts(overrides)}))


def set_limits(client: redis_sync.Redis, tag: str, **limits: float | None) -> dict[str, float]:
    """Changes limits for the whole fleet, at once; ``None`` goes back to the default. Returns those in force.

    Names are :data:`SETTABLE`; 0 = no such limit. Raises UsageError naming the limit that cannot be.
    """
    keys = admission_keys(tag)
    fields = {_field(name): (name, value) for name, value in limits.items()}
    pipe = client.pipeline(transaction=True)
    for key, (name, value) in fields.items():
        if value is None:
            pipe.hdel(keys["limits"], key)
        else:
            pipe.hset(keys["limits"], key, str(_whole(name, value)))
    pipe.hincrby(keys["limits"], "rev", 1)
    pipe.publish(everyone_channel(tag), json.dumps({"limits": True}))
    try:
        pipe.execute()
    except ResponseError as error:
        raise UsageError(f"Redis refused the limits: {error}") from None
    return read_status(client, tag).limits


def _field(name: str) -> str:
    if name not in SETTABLE:
        raise UsageError(f"no limit is called {name!r}: known are {', '.join(SETTABLE)}")
    return name[:-2] + "_ms" if name.endswith("_s") else name


def _whole(name: str, value: float) -> int:
    least = _LEAST.get(name, 0)
    if not least <= value < 1e12:
        raise UsageError(f"{name} = {value:g}: must be at least {least:g}")
    return round(value * 1000) if name.endswith("_s") else int(value)


def _ask(pipe: Any, tag: str) -> None:
    keys = admission_keys(tag)
    pipe.time()
    for name in ("state", "defaults", "limits", "workers"):
        pipe.hgetall(keys[name])
    for name in ("slots", "starts", "heard", "interactive", "batch"):
        pipe.zrange(keys[name], 0, -1, withscores=True)


def _status(tag: str, answers: list[Any]) -> Status:
    (seconds, micros), state, defaults, overrides, described, slots, starts, heard, interactive, batch = answers
    state, defaults, overrides = _texts(state), _texts(defaults), _texts(overrides)
    now = int(seconds) * 1000 + int(micros) // 1000 + int(state.get("skew", 0))
    own, fields = _numbers(defaults), _numbers({**defaults, **overrides})
    span = fields.get("window_ms", 0) + fields.get("guard_ms", 0)
    live = [_text(ticket) for ticket, until in slots if until > now]
    holders = Counter(_process(ticket) for ticket in live)
    queued = {"interactive": _queued(interactive), "batch": _queued(batch)}
    workers = []
    for process, at in heard:
        name = _text(process)
        told = json.loads(_texts(described).get(name, "{}"))
        known = {field: told.get(field, default) for field, default in _UNKNOWN.items()}
        for workload, counts in queued.items():
            known[workload] += counts[name]
        worker = WorkerStatus(process=name, held=holders[name], heard_s=max(0.0, (now - at) / 1000), **known)
        workers.append(worker)
    pause_ms = int(state.get("pause_until", 0)) - now
    return Status(
        tag=tag,
        epoch=state.get("epoch"),
        rebuilding="opens_at" in state,
        slots=fields.get("slots"),
        slots_used=len(live),
        cooling=sum(ticket.startswith("~") for ticket in live),
        starts=fields.get("starts") or None,
        starts_used=sum(at > now - span for _, at in starts) if fields.get("starts") else 0,
        window_s=fields.get("window_ms", 0) / 1000,
        tokens=fields.get("tokens") or None,
        tokens_used=int(state.get("tokens_sum", 0)),
        budget=fields.get("budget") or None,
        budget_spent=int(state.get("spent", 0)),
        waiting={
            workload: sum(getattr(worker, workload) for worker in workers) for workload in ("interactive", "batch")
        },
        pause_s=max(0, pause_ms) / 1000,
        pause_reason=state.get("pause_reason") if pause_ms > 0 else None,
        breaker="closed" if "tripped" not in state else "probing" if "probe" in state else "open",
        failures=int(state.get("fails", 0)),
        limits=_operators(fields),
        overridden=tuple(name for name, key in _names(fields) if key in overrides),
        workers=tuple(sorted(workers, key=lambda worker: worker.name)),
        next_start_s=_next_start_ms([at + span - now for _, at in starts], fields.get("starts", 0)) / 1000,
        brought=_operators(own),
    )


_UNKNOWN: dict[str, Any] = {"name": "?", "host": "?", "pid": 0, "interactive": 0, "batch": 0}
"""What a process says of itself, with defaults. Fields that a newer version added are ignored."""


def _numbers(fields: dict[str, str]) -> dict[str, int]:
    """The limits that this version knows; a newer one may have added others."""
    known = {_field(name) for name in SETTABLE}
    return {name: int(float(value)) for name, value in fields.items() if name in known}


def _operators(fields: dict[str, int]) -> dict[str, float]:
    """By the operators' names, durations in seconds."""
    return {name: fields[key] / 1000 if key.endswith("_ms") else fields[key] for name, key in _names(fields)}


def _names(fields: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, _field(name)) for name in SETTABLE if _field(name) in fields]


def _next_start_ms(left: list[float], starts: int) -> float:
    """``left``: milliseconds until each start leaves the window, rising."""
    within = [ms for ms in left if ms > 0]
    return within[len(within) - starts] if starts and len(within) >= starts else 0.0


def _process(ticket: str) -> str:
    return ticket.partition(".")[0]


def _queued(tickets: list[Any]) -> Counter[str]:
    return Counter(_process(_text(ticket)) for ticket, _ in tickets)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _texts(flat: dict[Any, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in flat.items()}
