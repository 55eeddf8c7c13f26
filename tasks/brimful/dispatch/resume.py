"""Takes over what an earlier submitter of a run left in Redis: uncollected outcomes, and shards still in flight."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from brimful.dispatch.ledger import RunLedger
from brimful.errors import BadRequest
from brimful.names import Mode
from brimful.packing.packing import PackedRequest, Slice, slices_of
from brimful.packing.request_size import line_profile, prompt_bytes
from brimful.packing.units import Delivered, Manifest, Recovered, Unit
from brimful.packing.unpacking import unpack
from brimful.profile import Profile
from brimful.request import Request
from brimful.state.broker_queues import find_shards
from brimful.state.redis_retry import retry_until_available


class TakenOver(NamedTuple):
    """What an earlier submitter of the run left, as this one continues it."""

    recovered: Recovered
    shards: dict[str, dict[str, PackedRequest]]
    """Shard → its requests without an outcome, by id."""
    last: str
    """The last entry of the results stream that was read; "0" = none."""


async def collect(ledger: RunLedger, profile: Profile) -> TakenOver:
    """Withdraws shards that have no message, or one that does not fit the ledger; their lines are then planned again.
    RabbitMQ does not show its messages: where it is the broker, all shards are withdrawn.

    Reads shards before outcomes: a request that ends in between is in both, and counts as ended. Raises FleetError when
    Redis refuses, and VersionMismatch when a later release began the run.
    """
    await retry_until_available(ledger.check_schema)
    await retry_until_available(lambda: ledger.drain(False))
    recorded = await retry_until_available(ledger.outstanding)
    alive = {shard: rows for shard, rows in recorded.items() if rows}
    messages = await retry_until_available(lambda: find_shards(ledger.client, alive, ledger.fleet)) if alive else {}
    delivered: list[Delivered] = []
    ended: set[str] = set()
    unmetered = 0
    last = "0"
    while results := await retry_until_available(lambda: ledger.results(last, 64, None)):  # noqa: B023
        for result in results:
            last = result.entry
            if result.id in ended:
                continue
            ended.add(result.id)
            unmetered += result.outcome.unmetered_tokens
            if result.outcome.ok:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    delivered += unpack(result.manifest, result.outcome)
    shards: dict[str, dict[str, PackedRequest]] = {}
    for shard, rows in alive.items():
        rows = {id: manifest for id, manifest in rows.items() if id not in ended}
        asked = {str(entry.get("id")): entry.get("request") for entry in messages.get(shard, [])}
        requests = {id: packed for id in rows if (packed := _rebuild(id, rows[id], asked.get(id), profile)) is not None}
        if rows and len(requests) == len(rows):
            shards[shard] = requests
    if forgotten := [shard for shard in recorded if shard not in shards]:
        await retry_until_available(lambda: ledger.withdraw(forgotten))
    outstanding = frozenset(
        (entry.line, entry.prompt_index, choice)
        for requests in shards.values()
        for packed in requests.values()
        for entry in packed.manifest
        for choice in entry.choices
    )
    return TakenOver(Recovered(delivered, outstanding, unmetered), shards, last)


def _rebuild(id: str, manifest: Manifest, fields: Any, profile: Profile) -> PackedRequest | None:
    """A request from the ledger's manifest and its message's fields; None where the two do not fit.

    The units in it have one prompt each: the lines' own requests are not known.
    """
    if not isinstance(fields, Mapping) or not manifest:
        return None
    try:
        request = Request.parse(fields, line_profile(profile))
        pack_key, _ = next(slices_of(Unit(0, "", replace(request, id="")), profile))
    except (BadRequest, StopIteration):
        return None
    prompts = request.prompts
    if len(prompts) != len(manifest) or not request.n == pack_key.n == len(manifest[0].choices):
        return None
    name = "messages" if request.mode is Mode.CHAT else "prompt"
    slices = []
    for entry, prompt in zip(manifest, prompts, strict=True):
        line = Request({**request.fields, name: prompt}, "", request.mode, request.workload)
        wanted = tuple((entry.prompt_index, choice) for choice in entry.choices)
        unit = Unit(entry.line, entry.id, line, wanted)
        slices.append(Slice(unit, entry.prompt_index, entry.choices, prompt, prompt_bytes(prompt)))
    return PackedRequest(id, pack_key, tuple(slices))
