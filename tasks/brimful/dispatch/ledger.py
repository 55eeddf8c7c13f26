"""A run's keys in Redis, which its submitter and the workers share. Plain commands and MULTI only, no scripts.

=========================  ======  ==============================================================================
``shards``                 ZSET    shard → when it was enqueued (Unix seconds)
``shard:<S>``              HASH    request id → manifest JSON (no prompts), of requests without an outcome
``results``                STREAM  ``id``, ``units`` (manifest JSON), ``outcome`` (JSON); trimmed when written down
``claim:<S>``              STRING  token of the worker that runs the shard; expires unless renewed
``tries:<S>``              STRING  how often the shard was begun without being given back
``schema``                 STRING  version of these formats (:mod:`brimful.schema`); absent = 1
``drain``                  STRING  exists while the submitter wants nothing new on the wire
``entry``                  HASH    who submits the run, and how far it is (:mod:`brimful.state.runs`)
=========================  ======  ==============================================================================

A request is either in its shard's HASH or its outcome is in the stream: the worker changes both in one step. Every key
expires a week after it was last written; a shard that expired earlier than its submitter is enqueued again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis

from brimful.outcome import Outcome
from brimful.packing.slot_model import Weights
from brimful.packing.units import Manifest, manifest_from, manifest_message
from brimful.runtime.json_bytes import decode, encode
from brimful.schema import LEDGER, check_schema
from brimful.state.keys import revoked_key, run_key, weights_key
from brimful.state.runs.heartbeat import Heartbeat

TTL_S = 7 * 24 * 3600
CLAIM_TTL_S = 10.0
"""A worker that has not renewed its claim for this long counts as dead."""
CLOSED_TTL_S = 60
"""How long workers remember that nobody will collect a run's outcomes: longer than a request takes to be cancelled."""
SUSPECT = "suspect"
"""Optional field of a request in a shard's message: true if it is a part of a pack with which workers died."""
STATED_S = 10.0
"""A run that has not stated its weight for this long is over, or held."""
_CHUNK = 500


class Result(NamedTuple):
    """An entry of the results stream."""

    entry: str
    id: str
    units: str
    """The manifest's message as JSON. A driver knows the manifests of its own requests."""
    outcome: Outcome

    @property
    def manifest(self) -> Manifest:
        """Raises ValueError or TypeError where ``units`` is not a manifest."""
        return manifest_from(decode(self.units))


class ShardState(NamedTuple):
    recorded: bool
    """It has requests without an outcome, and was not withdrawn."""
    claimed: bool
    """A worker runs it."""
    begun: bool
    """A worker has run it, now or before."""


class Keys:
    """The names of one run's keys."""

    def __init__(self, run: str) -> None:
        self.shards = run_key(run, "shards")
        self.results = run_key(run, "results")
        self.drain = run_key(run, "drain")
        self.schema = run_key(run, "schema")
        self.closed = run_key(run, "closed")
        self._run = run

    def shard(self, shard: str) -> str:
        return run_key(self._run, f"shard:{shard}")

    def claim(self, shard: str) -> str:
        return run_key(self._run, f"claim:{shard}")

    def tries(self, shard: str) -> str:
        return run_key(self._run, f"tries:{shard}")


class RunLedger:
    """The submitter's side. Every method raises redis.RedisError and may be repeated."""

    def __init__(self, client: Redis, run: str, fleet: str = "") -> None:
        """``run``: the run's id, with its fleet's name."""
        self.client = client
        self.fleet = fleet
        self.keys = Keys(run)
        self._run = run
        self._weight: str | None = None

    async def weigh(
        self, weight: float, heartbeat: Heartbeat | None = None, *, held: bool = False
    ) -> tuple[Weights, bool]:
        """State this run's weight, every few seconds while it is under way, and write its entry.

        ``held``: state none, since it takes nothing from the others. Returns the weights of all such runs, and whether
        something else is asked of the run than before.
        """
        key, now = weights_key(self.fleet), (await self.client.time())[0]
        self._weight = f"{weight:g} {self._run}"
        async with self.client.pipeline(transaction=True) as pipe:
            if held:
                pipe.zrem(key, self._weight)
            else:
                pipe.zadd(key, {self._weight: now})
            pipe.zremrangebyscore(key, "-inf", now - STATED_S)
            pipe.expire(key, 60)
            pipe.zrange(key, 0, -1)
            if heartbeat is not None:
                heartbeat.add(pipe, self._run, now)
            _, _, _, stated, *answers = await pipe.execute()
        weights = [float(each.partition(" ")[0]) for each in stated] + [weight] * held
        changed = heartbeat is not None and heartbeat.take(answers)
        return Weights(weight, min(weights), sum(weights)), changed

    async def record(self, shards: Mapping[str, Mapping[str, Manifest]]) -> None:
        """Record shards, each with its requests' manifests by request id, before their messages are sent."""
        async with self.client.pipeline(transaction=True) as pipe:
            now = time.time()
            for shard, requests in shards.items():
                rows: dict[Any, Any] = {id: encode(manifest_message(manifest)) for id, manifest in requests.items()}
                pipe.hset(self.keys.shard(shard), mapping=rows)
                pipe.expire(self.keys.shard(shard), TTL_S)
                pipe.zadd(self.keys.shards, {shard: now})
            pipe.expire(self.keys.shards, TTL_S)
            pipe.set(self.keys.schema, LEDGER, ex=TTL_S)
            await pipe.execute()

    async def check_schema(self) -> None:
        """Raises VersionMismatch if a later release began this run."""
        found = await self.client.get(self.keys.schema)
        check_schema("what Redis holds of this run", found, LEDGER, "resume it with the release that began it")

    async def withdraw(self, shards: Iterable[str]) -> None:
        """Forget shards: no worker begins them any more, and workers that run them stop within about a second."""
        for chunk in _chunks(list(shards)):
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.delete(*map(self.keys.shard, chunk), *map(self.keys.tries, chunk))
                pipe.zrem(self.keys.shards, *chunk)
                await pipe.execute()

    async def withdraw_all(self) -> None:
        """Forget every recorded shard."""
        if shards := await self._recorded():
            await self.withdraw(shards)

    async def cancel(self, requests: Mapping[str, Iterable[str]]) -> None:
        """Forget requests, by shard: those that were not begun never are, and workers end the others within about a
        second."""
        for chunk in _chunks(list(requests)):
            async with self.client.pipeline(transaction=False) as pipe:
                for shard in chunk:
                    pipe.hdel(self.keys.shard(shard), *requests[shard])
                    pipe.exists(self.keys.shard(shard))
                left = (await pipe.execute())[1::2]
            if empty := [shard for shard, some in zip(chunk, left, strict=True) if not some]:
                await self.withdraw(empty)

    async def outstanding(self) -> dict[str, dict[str, Manifest]]:
        """Every recorded shard, with the manifests of its requests without an outcome; there may be none."""
        shards = await self._recorded()
        found: dict[str, dict[str, Manifest]] = {}
        for chunk in _chunks(shards):
            async with self.client.pipeline(transaction=False) as pipe:
                for shard in chunk:
                    pipe.hgetall(self.keys.shard(shard))
                for shard, rows in zip(chunk, await pipe.execute(), strict=True):
                    found[shard] = {id: manifest_from(decode(raw)) for id, raw in rows.items()}
        return found

    async def look(self, shards: Sequence[str]) -> dict[str, ShardState]:
        states: dict[str, ShardState] = {}
        for chunk in _chunks(shards):
            async with self.client.pipeline(transaction=False) as pipe:
                for shard in chunk:
                    pipe.exists(self.keys.shard(shard))
                pipe.mget([*map(self.keys.claim, chunk), *map(self.keys.tries, chunk)])  # redis-py waits for each reply
                *recorded, values = await pipe.execute()
            claims, tries = values[: len(chunk)], values[len(chunk) :]
            for shard, there, claim, begun in zip(chunk, recorded, claims, tries, strict=True):
                states[shard] = ShardState(bool(there), claim is not None, begun is not None)
        return states

    async def revoked(self, shards: Sequence[str]) -> dict[str, str]:
        """Those whose task was revoked: ``skip`` or ``terminate`` (:mod:`brimful.state.revocations`)."""
        found: dict[str, str] = {}
        for chunk in _chunks(shards):
            async with self.client.pipeline(transaction=False) as pipe:
                for shard in chunk:
                    pipe.get(revoked_key(shard, self.fleet))
                found |= {shard: value for shard, value in zip(chunk, await pipe.execute(), strict=True) if value}
        return found

    async def results(self, after: str, count: int, block_ms: int | None) -> list[Result]:
        """Outcomes after the entry ``after`` ("0" = from the first). If there are none, waits up to ``block_ms``."""
        answer: Any = await self.client.xread({self.keys.results: after}, count=count, block=block_ms)
        return parse_results(answer, self.keys.results)

    async def forget(self, entry: str) -> None:
        """Trim the stream: everything up to ``entry`` is written down."""
        milliseconds, _, sequence = entry.partition("-")
        await self.client.xtrim(self.keys.results, minid=f"{milliseconds}-{int(sequence) + 1}", approximate=False)

    async def drain(self, on: bool) -> None:
        """``on``: workers put nothing new on the wire."""
        if on:
            await self.client.set(self.keys.drain, "1", ex=24 * 3600)
        else:
            await self.client.delete(self.keys.drain)

    async def clear(self, *, keep: bool) -> None:
        """Delete the run's keys and withdraw its shards. ``keep``: outcomes that were not collected stay for the run's
        next submitter; else they are deleted, and those that workers have still to store are dropped."""
        await self.withdraw_all()

        async def delete(pipe: Any) -> None:
            gone = [self.keys.shards, self.keys.drain, self.keys.schema]
            if not keep or await pipe.xlen(self.keys.results) == 0:
                gone.append(self.keys.results)
            pipe.multi()
            if not keep:
                pipe.set(self.keys.closed, "1", ex=CLOSED_TTL_S)
            pipe.delete(*gone)

        # Begins again if a worker stores an outcome between the look at the results and their deletion.
        await self.client.transaction(delete, *([self.keys.results] if keep else []))

    async def end(self) -> None:
        """Remove this run's weight: its submitter has ended."""
        if self._weight is not None:
            await self.client.zrem(weights_key(self.fleet), self._weight)

    async def _recorded(self) -> list[str]:
        return [str(shard) for shard in await self.client.zrange(self.keys.shards, 0, -1)]


def result_fields(id: str, units: Any, outcome: Outcome) -> dict[str, str | bytes]:
    """The fields that a worker adds to the results stream. ``units`` is the manifest's message."""
    return {"id": id, "units": encode(units), "outcome": encode(outcome.as_message())}


def parse_results(answer: Any, key: str) -> list[Result]:
    """The results in the answer to XREAD of ``key``."""
    rows = dict(answer or ()).get(key, [])
    if rows and not isinstance(rows[0][0], str):
        rows = rows[0]  # with RESP3 (``?protocol=3``), redis-py nests the rows once more
    return [Result(entry, row["id"], row["units"], Outcome.from_message(decode(row["outcome"]))) for entry, row in rows]


def _chunks(items: Sequence[str]) -> Iterable[Sequence[str]]:
    for begin in range(0, len(items), _CHUNK):
        yield items[begin : begin + _CHUNK]
