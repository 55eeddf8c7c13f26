"""What an earlier submitter of a run left behind in Redis: outcomes nobody collected, and shards still under way."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from redis.asyncio import Redis

from brimful.dispatch.ledger import RunLedger
from brimful.dispatch.rebuild import rebuilt
from brimful.packing.packing import PackedRequest, unpack
from brimful.packing.units import Delivered, Recovered
from brimful.profile import Profile
from brimful.state.broker_queues import find_shards
from brimful.state.redis_retry import retry_until_available


@dataclass(frozen=True, slots=True)
class Left:
    delivered: list[Delivered]
    shards: dict[str, dict[str, PackedRequest]]
    """Shard → its requests without an outcome, as their message tells them."""
    last: str
    """The last entry of the stream that was read; "0" = none."""

    @property
    def recovered(self) -> Recovered:
        outstanding = frozenset(
            (piece.line, piece.prompt_index, choice)
            for requests in self.shards.values()
            for packed in requests.values()
            for piece in packed.manifest
            for choice in piece.choices
        )
        return Recovered(self.delivered, outstanding)


async def collect(client: Redis, ledger: RunLedger, profile: Profile) -> Left:
    """Shards without a message, or with another than they should have, are withdrawn: their lines are planned anew.

    Shards are read before outcomes: what ends in between is then in both, and counts as ended.
    """
    await retry_until_available(lambda: ledger.drain(False))
    recorded = await retry_until_available(ledger.outstanding)
    alive = {shard: rows for shard, rows in recorded.items() if rows}
    messages = await retry_until_available(lambda: find_shards(client, alive)) if alive else {}
    delivered: list[Delivered] = []
    ended: set[str] = set()
    last = "0"
    while results := await retry_until_available(lambda: ledger.results(last, 64, None)):  # noqa: B023
        for result in results:
            last = result.entry
            if result.id not in ended and result.outcome.ok:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    delivered += unpack(result.manifest, result.outcome)
            ended.add(result.id)
    shards: dict[str, dict[str, PackedRequest]] = {}
    for shard, rows in alive.items():
        rows = {id: manifest for id, manifest in rows.items() if id not in ended}
        asked = {str(entry.get("id")): entry.get("request") for entry in messages.get(shard, [])}
        requests = {id: packed for id in rows if (packed := rebuilt(id, rows[id], asked.get(id), profile)) is not None}
        if rows and len(requests) == len(rows):
            shards[shard] = requests
    if forgotten := [shard for shard in recorded if shard not in shards]:
        await retry_until_available(lambda: ledger.withdraw(forgotten))
    return Left(delivered, shards, last)
