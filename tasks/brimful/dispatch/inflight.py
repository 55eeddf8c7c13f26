"""The requests of a run that have no outcome yet, and the shards that carry them. No I/O."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from brimful.names import Workload
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest
from brimful.packing.slot_model import SlotModel
from brimful.packing.units import DriveStatus

SHARD_BYTES = 768 * 1024
_SHARDS = 24
"""About how many shards the requests in flight are divided into, so that every worker gets some. A shard has at least
one request, and at most _SHARD_REQUESTS."""
_SHARD_REQUESTS = 256
_SHARDS_PER_S = 40


@dataclass(eq=False)
class Shard:
    id: str
    queue: str
    """Celery's queue, which has the name of the requests' workload."""
    requests: dict[str, PackedRequest] = field(default_factory=dict)
    """Those without an outcome, by id."""
    enqueued_at: float = 0.0
    """``time.monotonic()``; 0 = not enqueued yet."""
    times_missing: int = 0
    """Consecutive looks that found it neither queued nor claimed."""

    @property
    def size(self) -> int:
        """Approximate bytes of its prompts."""
        return sum(packed.size for packed in self.requests.values())


class InFlight:
    """What one driver has handed out and awaits. Every request is in exactly one shard; an empty shard is removed."""

    def __init__(self, sizer: PackSizer, slot_model: SlotModel, workload: Workload | None) -> None:
        """``workload`` None: each request's own."""
        self.slot_model = slot_model
        self.status = DriveStatus()
        self.shards: dict[str, Shard] = {}
        self.unsent: asyncio.Queue[Shard] = asyncio.Queue()
        """Shards for the enqueuer."""
        self.adopted: set[str] = set()
        """Requests of an earlier submitter: the lines' own requests are not known here."""
        self.bytes = 0
        self._sizer = sizer
        self._workload = workload
        self._shard_of: dict[str, Shard] = {}
        self._dropped: dict[str, PackedRequest] = {}

    def __len__(self) -> int:
        return len(self._shard_of)

    @property
    def newest(self) -> PackedRequest | None:
        """A request of the shard that was filled last."""
        shard = next(reversed(self._shard_of.values()), None)
        return next(iter(shard.requests.values()), None) if shard is not None else None

    @property
    def requests(self) -> Iterator[PackedRequest]:
        for shard in self.shards.values():
            yield from shard.requests.values()

    def reserve(self, packed: PackedRequest) -> None:
        """Count the request in the slot model, so that the rest of the same plan sees it; :meth:`add` follows."""
        self.slot_model.enqueued(packed.id, partial(self._predicted_s, packed), time.monotonic())

    def add(self, made: Sequence[PackedRequest]) -> None:
        """Divide new requests, reserved before, into shards."""
        by_slots = max(self.slot_model.limits.slots // _SHARDS, self.slot_model.per_place)
        limit = max(by_slots, int(self._rate(made[0]) / _SHARDS_PER_S), 1)
        limit = min(limit, _SHARD_REQUESTS)
        open_shards: dict[str, tuple[Shard, int]] = {}
        for packed in made:
            queue = (self._workload or packed.pack_key.workload).value
            shard, size = open_shards.get(queue, (None, 0))
            if shard is None or len(shard.requests) >= limit or size + packed.size > SHARD_BYTES:
                shard, size = Shard(uuid.uuid4().hex, queue), 0
                self.shards[shard.id] = shard
                self.unsent.put_nowait(shard)
            self._put(shard, packed)
            open_shards[queue] = (shard, size + packed.size)

    def adopt(self, id: str, requests: Mapping[str, PackedRequest]) -> None:
        """Await a shard that an earlier submitter of the run enqueued."""
        first = next(iter(requests.values()))
        shard = Shard(id, (self._workload or first.pack_key.workload).value, enqueued_at=time.monotonic())
        self.shards[id] = shard
        self.adopted.update(requests)
        for packed in requests.values():
            self.reserve(packed)
            self._put(shard, packed)

    def end(self, id: str) -> PackedRequest | None:
        """Remove a request that has its outcome. None: it is unknown, or its outcome came before."""
        return self._remove(id) or self._dropped.pop(id, None)

    def drop(self, shard: Shard) -> None:
        """Stop waiting for a withdrawn shard. Outcomes of it that come all the same are still accepted."""
        for id in list(shard.requests):
            if (packed := self._remove(id)) is not None:
                self._dropped[id] = packed
        self.shards.pop(shard.id, None)

    def cancel(self, lines: Set[int]) -> dict[str, list[str]]:
        """Remove the requests that carry only these lines. Their outcomes are ignored. Returns ids by shard."""
        found: dict[str, list[str]] = {}
        for id, shard in self._shard_of.items():
            if all(entry.line in lines for entry in shard.requests[id].manifest):
                found.setdefault(shard.id, []).append(id)
        for ids in found.values():
            for id in ids:
                self._remove(id)
        return found

    def drop_unsent(self) -> None:
        while not self.unsent.empty():
            self.drop(self.unsent.get_nowait())

    def _rate(self, packed: PackedRequest) -> float:
        """Requests a second, as measured lately or as the limits allow: with smaller shards, the workers' cost for each
        shard would keep the rate from being reached."""
        measured = self.slot_model.rate(time.monotonic())
        seconds = self._sizer.seconds(packed.pack_key, len(packed.slices))
        limits = self.slot_model.limits
        return max(measured, min(limits.start_rate, limits.slots / seconds)) if seconds else measured

    def _put(self, shard: Shard, packed: PackedRequest) -> None:
        shard.requests[packed.id] = packed
        self._shard_of[packed.id] = shard
        self.bytes += packed.held_bytes

    def _remove(self, id: str) -> PackedRequest | None:
        shard = self._shard_of.pop(id, None)
        if shard is None:
            return None
        packed = shard.requests.pop(id)
        if not shard.requests:
            self.shards.pop(shard.id, None)
        self.bytes -= packed.held_bytes
        self.slot_model.ended(id, time.monotonic())
        return packed

    def _predicted_s(self, packed: PackedRequest) -> float:
        return self._sizer.predicted_s(packed.pack_key, len(packed.slices))
