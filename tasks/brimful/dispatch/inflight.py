"""The requests of a run that have no outcome yet, and the shards that carry them. Pure bookkeeping."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from brimful.dispatch.enqueue import ShardMessage
from brimful.names import Workload
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest
from brimful.packing.slot_model import SlotModel
from brimful.packing.units import manifest_message

SHARD_BYTES = 768 * 1024
_SHARDS = 24
"""Into about so many shards what is outstanding is divided, so that every worker gets its share; at least one request
each, _SHARD_MOST at most."""
_SHARD_MOST = 256
_SHARDS_A_SECOND = 40


@dataclass(eq=False)
class Shard:
    id: str
    queue: str
    requests: dict[str, PackedRequest] = field(default_factory=dict)
    """Those without an outcome."""
    enqueued_at: float = 0.0
    """0 = not yet."""
    missed: int = 0
    """Looks in a row that found it nowhere."""

    @property
    def size(self) -> int:
        return sum(packed.size for packed in self.requests.values())


class Outstanding:
    """Every request is in exactly one shard, and a shard is here as long as it has one."""

    def __init__(
        self, pace: SlotModel, tuner: PackSizer, workload: Workload | None, clock: Callable[[], float]
    ) -> None:
        """``workload`` None: each request's own."""
        self._pace = pace
        self._tuner = tuner
        self._workload = workload
        self._clock = clock
        self._where: dict[str, Shard] = {}
        self._dropped: dict[str, PackedRequest] = {}
        self.shards: dict[str, Shard] = {}
        self.unsent: deque[Shard] = deque()
        self.foreign: set[str] = set()
        """Requests of an earlier submitter: their lines' own requests are not known here."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, id: str) -> bool:
        return id in self._where

    @property
    def last(self) -> PackedRequest | None:
        """One of those that were added last."""
        shard = next(reversed(self._where.values()), None)
        return next(iter(shard.requests.values()), None) if shard is not None else None

    def announce(self, packed: PackedRequest) -> None:
        """It will be added in a moment; what is planned meanwhile reckons with it."""
        self._pace.enqueued(packed.id, partial(self._seconds, packed), self._clock())

    def add(self, made: Iterable[PackedRequest]) -> None:
        """Divides new (announced) requests into shards, which wait in ``unsent``."""
        now = self._clock()
        made = list(made)
        limit = max(self._pace.limits.slots // _SHARDS, int(self._rate(made, now) / _SHARDS_A_SECOND), 1)
        limit = min(limit, _SHARD_MOST)
        current: dict[str, tuple[Shard, int]] = {}
        for packed in made:
            queue = (self._workload or packed.pack_key.workload).value
            shard, size = current.get(queue, (None, 0))
            if shard is None or len(shard.requests) >= limit or size + packed.size > SHARD_BYTES:
                shard, size = Shard(uuid.uuid4().hex, queue), 0
                self.shards[shard.id] = shard
                self.unsent.append(shard)
            self._put(shard, packed)
            current[queue] = (shard, size + packed.size)

    def adopt(self, shard: str, requests: Mapping[str, PackedRequest]) -> None:
        """A shard that an earlier submitter enqueued."""
        adopted = Shard(shard, (self._workload or Workload.BATCH).value, enqueued_at=self._clock())
        self.shards[shard] = adopted
        self.foreign.update(requests)
        for packed in requests.values():
            self.announce(packed)
            self._put(adopted, packed)

    def end(self, id: str) -> PackedRequest | None:
        """The request has its outcome. None where it had it before, or was dropped by a stop long ago."""
        return self._remove(id) or self._dropped.pop(id, None)

    def drop(self, shard: Shard) -> None:
        """The shard was withdrawn: its outcomes are not waited for, yet welcome should one come."""
        for id in list(shard.requests):
            if (packed := self._remove(id)) is not None:
                self._dropped[id] = packed
        self.shards.pop(shard.id, None)

    def drop_unsent(self) -> None:
        while self.unsent:
            self.drop(self.unsent.pop())

    def message(self, run: str, shard: Shard) -> ShardMessage:
        requests = []
        for id, packed in shard.requests.items():
            fields = packed.request.as_message()
            if self._workload is not None:
                fields["workload"] = self._workload.value
            requests.append({"id": id, "units": manifest_message(packed.manifest), "request": fields})
        return ShardMessage(run, shard.id, shard.queue, requests)

    def _rate(self, made: Sequence[PackedRequest], now: float) -> float:
        """Requests a second: as they ended of late, or as the limits would allow. Shards that are too small for it cost
        the workers so much that it is never reached."""
        measured, seconds = self._pace.rate(now), self._seconds(made[0]) if made else 0.0
        limits = self._pace.limits
        return max(measured, min(limits.start_rate, limits.slots / seconds)) if seconds else measured

    def _put(self, shard: Shard, packed: PackedRequest) -> None:
        shard.requests[packed.id] = packed
        self._where[packed.id] = shard
        self.bytes += packed.size

    def _remove(self, id: str) -> PackedRequest | None:
        shard = self._where.pop(id, None)
        if shard is None:
            return None
        packed = shard.requests.pop(id)
        if not shard.requests:
            self.shards.pop(shard.id, None)
        self.bytes -= packed.size
        self._pace.ended(id, self._clock())
        return packed

    def _seconds(self, packed: PackedRequest) -> float:
        return self._tuner.predicted_s(packed.pack_key, len(packed.slices))
