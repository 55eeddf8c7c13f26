"""Checks of Redis: it answers, is recent and near, keeps its data, evicts nothing, and agrees on the time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from brimful.doctor import Check, Level
from brimful.limits import too_far
from brimful.state.probes import EVICTION_REMEDY, eviction_fault
from brimful.state.target import RedisTarget
from brimful.words.counted import counted

_OLDEST = (6, 2)
_SKEW_S = 5.0
_SLOW_S = 0.02
_JITTER_S = 0.1
"""Half of the guard of a window of no more than a second: a grant that takes longer than the guard is given back."""
_ROUNDS = 20


def server_checks(target: RedisTarget, client: redis.Redis, lease_s: float = 8.0) -> Iterator[Check]:
    """``client`` is connected to ``target``; ``lease_s``: a worker's. Raises redis.RedisError if it does not answer."""
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        client.ping()
        times.append(time.perf_counter() - began)
    usual, worst = statistics.median(times), max(times)
    away = f"{usual * 1000:.1f} ms away (at worst {worst * 1000:.1f} ms in {_ROUNDS})"
    try:
        info: dict[str, Any] = client.info()
    except NoPermissionError:
        said = f"{target.shown}, {away}; its user may not use INFO, so version, persistence and memory are unknown"
        yield Check("Redis", Level.FAIL, said, "give it the rights in docs/redis.md: workers need INFO")
        yield _clock(client)
        return
    product = "Valkey" if info.get("valkey_version") else "Redis"
    version = str(info.get("valkey_version") or info["redis_version"])
    said = f"{product} {version} at {target.shown}, {away}"
    number = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2] if part.isdigit())
    if number < _OLDEST:
        yield Check("Redis", Level.FAIL, f"{said}: older than {'.'.join(map(str, _OLDEST))}", "upgrade it")
    elif fault := too_far(usual, lease_s):
        said, _, todo = fault.partition(": ")
        yield Check("Redis", Level.FAIL, f"{target.shown}: {said}", f"{todo}; no worker here can start anything")
    elif usual > _SLOW_S:
        cost = f"a freed slot stays idle for a round trip: {usual / (usual + 1):.0%} of the slots with requests of 1 s"
        yield Check("Redis", Level.WARN, f"{said}; {cost}", "move it and the workers nearer to each other")
    elif worst > _JITTER_S:
        todo = "look at its machine and the network: a grant that arrives later than BRIMFUL_GUARD_S is given back"
        yield Check("Redis", Level.WARN, said, todo)
    else:
        yield Check("Redis", Level.OK, said)
    if info.get("role") not in (None, "master"):
        said = f"it is a {info['role']}, which takes no writes"
        yield Check("Redis role", Level.FAIL, said, "let BRIMFUL_REDIS_URL name the primary")
    yield _persistence(info)
    yield from _replication(info)
    yield _eviction(info)
    yield _clock(client)


def _persistence(info: dict[str, Any]) -> Check:
    if not info.get("aof_enabled"):
        return Check(
            "persistence",
            Level.WARN,
            "no append-only file: a restart loses queued tasks, results and the admission's state",
            "set `appendonly yes` (in Redis's configuration, or with CONFIG SET)",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return Check("persistence", Level.FAIL, "it cannot write its append-only file", "check its disk")
    return Check("persistence", Level.OK, "append-only file")


def _replication(info: dict[str, Any]) -> Iterator[Check]:
    """Nothing for a server without replicas. INFO has ``min_slaves_good_slaves`` only where both settings are not 0."""
    if info.get("role") != "master" or not (replicas := int(info.get("connected_slaves", 0))):
        return
    said = counted(replicas, "replica")
    if "min_slaves_good_slaves" in info:
        yield Check("replicas", Level.OK, f"{said}; it takes no writes without {'them' if replicas > 1 else 'it'}")
        return
    yield Check(
        "replicas",
        Level.WARN,
        f"{said} and min-replicas-to-write 0: after a failover, workers that still reach this server go on starting "
        "requests beside those of the new primary",
        "set `min-replicas-to-write 1` and `min-replicas-max-lag 5` here and on each replica (CONFIG SET, and in its "
        "configuration); see docs/redis.md",
    )


def _eviction(info: dict[str, Any]) -> Check:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    fault, evicts = eviction_fault(info)
    if fault is not None:
        return Check("memory", Level.FAIL if evicts else Level.WARN, fault, EVICTION_REMEDY)
    if limit and used > 0.8 * limit:
        return Check("memory", Level.WARN, f"{used / limit:.0%} of maxmemory is used", "raise maxmemory or delete data")
    return Check("memory", Level.OK, f"{used / 2**20:.0f} MiB used, {policy}")


def _clock(client: redis.Redis) -> Check:
    before = time.time()
    seconds, micros = client.time()
    skew = seconds + micros / 1e6 - (before + time.time()) / 2
    if abs(skew) > _SKEW_S:
        return Check(
            "clock",
            Level.NOTE,
            f"Redis's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's; the limits are "
            "kept on Redis's clock alone, so only times in logs and pages differ",
            "synchronize both with NTP",
        )
    return Check("clock", Level.OK, f"within {max(abs(skew), 0.001):.3f} s of Redis's clock")
