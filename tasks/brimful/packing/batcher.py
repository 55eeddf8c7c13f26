"""Chooses the next request: holds the lines that were read, grouped by pack key. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from itertools import islice

from brimful.names import Mode
from brimful.packing.pack_size import START_PROMPTS, START_TOKENS, Chunk, PackSizer, fill_slots
from brimful.packing.packing import KeyParts, Pack, PackKey, Slice, fill_requests, slices_of
from brimful.packing.slot_model import SlotModel
from brimful.packing.units import PackOption, Unit
from brimful.profile import Profile

_HELD = (256, 40_000)
"""Slices held at least and at most, so that there is something to choose from."""
_HELD_BYTES = 48 * 1024 * 1024
_END_WAVES = 3
"""What is left is planned as a whole once each slot has at most this many requests to do."""
_END_GROWTH = 1.4
"""How much larger than in the long run such requests may be."""
_PLANNED_SLOTS = 128
_PLANNED_GROUPS = 64
"""More slots or groups are not planned: it would take too long."""
_LOOKED_AT = 64
"""Groups among which the oldest is looked for."""
_PROBE_SHARES, _SECOND_SHARES = (4, 2, 1), (1, 2, 1)
"""Probes are this many times smaller than the safe size, over and over, and those after the first answer: different
sizes teach the most."""
_PROBE_STARTS = 6
"""A round of probes takes at most this part of a window's starts."""
_PROBE_S = 1.0
"""How long slots wait for the answers to a round of probes before they get further ones."""


@dataclass(slots=True)
class Group:
    """The held slices of one pack key, each with the number under which it was added."""

    pack_key: PackKey
    slices: deque[tuple[int, Slice]] = field(default_factory=deque)


class Batcher:
    """``add`` units, ask for the ``next`` request's slices. Whatever order they leave in, each slice leaves once."""

    def __init__(self, profile: Profile, pack: PackOption, sizer: PackSizer, slot_model: SlotModel) -> None:
        self._profile = profile
        self._pack = pack
        self._sizer = sizer
        self._slot_model = slot_model
        self._pack_keys: dict[KeyParts, PackKey] = {}
        self._groups: dict[str, Group] = {}
        self._filled: dict[str, None] = {}
        """Groups with enough for a request, as far as known, in the order in which they came to it."""
        self._ready: deque[tuple[PackKey, Pack]] = deque()
        """Requests that are sent as they are, before all others."""
        self._added = 0
        self._probes = 0
        """Requests sent while their latency was unknown."""
        self._probed_at = 0.0
        """When the last of them was sent."""
        self.held = 0
        """Slices."""
        self.held_bytes = 0
        self.pack = 1
        """Prompts in the latest request."""

    def add(self, unit: Unit) -> None:
        """Raises RequestTooLarge where not even one choice of it fits a request; it is then not held."""
        slices = list(slices_of(unit, self._profile, self._pack_keys))
        if self._pack == "off":
            self._add_whole(slices)
            return
        for pack_key, item in slices:
            self._added += 1
            self.held += 1
            self.held_bytes += item.held_bytes
            group = self._groups.get(pack_key.key)
            if group is None:
                group = self._groups[pack_key.key] = Group(pack_key)
            group.slices.append((self._added, item))
            if pack_key.key not in self._filled and len(group.slices) >= self._size(group):
                self._filled[pack_key.key] = None

    def put_back(self, pack_key: PackKey, packs: Iterable[Pack]) -> None:
        """Requests to be sent as they are, before all others."""
        for slices in packs:
            self._ready.append((pack_key, slices))
            self.held += len(slices)
            self.held_bytes += sum(item.held_bytes for item in slices)

    def drop(self, lines: Set[int]) -> None:
        """Forget the slices of these lines that are held."""
        for key, group in list(self._groups.items()):
            self._release(tuple(item for _, item in group.slices if item.unit.line in lines))
            group.slices = deque(row for row in group.slices if row[1].unit.line not in lines)
            if not group.slices:
                del self._groups[key]
        ready, self._ready = self._ready, deque()
        for pack_key, slices in ready:
            self._release(slices)
            if kept := tuple(item for item in slices if item.unit.line not in lines):
                self.put_back(pack_key, [kept])

    @property
    def targets(self) -> set[tuple[Mode, str]]:
        """Endpoints and models of what is held."""
        held = [group.pack_key for group in self._groups.values()] + [pack_key for pack_key, _ in self._ready]
        return {pack_key.target for pack_key in held}

    @property
    def full(self) -> bool:
        """There is enough to choose from; reading further would only take memory."""
        least, most = _HELD
        if self.held_bytes >= _HELD_BYTES or self.held >= most:
            return True
        if self._pack == "off":
            return self.held >= least
        if isinstance(self._pack, int):
            return self.held >= max(least, 4 * self._pack)
        if self.held < max(least, 2 * START_PROMPTS * self._slot_model.limits.slots):
            return False
        kinds = min(8, len(self._groups))
        return self.held >= 2 * kinds * max(map(self._size, islice(self._groups.values(), kinds)), default=0)

    def next(self, now: float, more: int | None, flush: bool) -> tuple[PackKey, Pack] | None:
        """The next request, or None: read on first (or nothing is held).

        ``more``: lines not added yet, None = unknown. ``flush``: nothing more comes just now, so that waiting for
        fuller requests would leave slots idle.
        """
        if self._ready:
            pack_key, slices = self._ready.popleft()
            self._release(slices)
            return pack_key, slices
        if not self._groups:
            return None
        everything = flush or more == 0
        chosen = self._planned(now, more, everything) if self._pack == "auto" else None
        if chosen is None and self._awaits_probes(now):
            return None
        chosen = chosen or self._fullest(everything)
        return None if chosen is None else self._take(*chosen, now)

    def _planned(self, now: float, more: int | None, everything: bool) -> tuple[Group, int] | None:
        """Once what is left is known and not plenty: a group and a size, from a plan in which the slots end together.

        While the latency is unknown that plan assumes the worst case, with which packing must not be slower.
        """
        sizer, slots = self._sizer, self._slot_model.limits.slots
        if slots > _PLANNED_SLOTS or len(self._groups) > _PLANNED_GROUPS or (more is None and not everything):
            return None
        groups = list(self._groups.values())
        left = [max(1, round(len(group.slices) * (1 + (more or 0) / self.held))) for group in groups]
        most = [sizer.best(group.pack_key) for group in groups]
        if all(sizer.known(group.pack_key) for group in groups):
            if sum(-(-count // size) for count, size in zip(left, most, strict=True)) > _END_WAVES * slots:
                return None
            most = [
                min(int(_END_GROWTH * size), sizer.most_prompts(group.pack_key))
                for size, group in zip(most, groups, strict=True)
            ]
        else:
            tokens = sum(count * group.pack_key.tokens_per_prompt for count, group in zip(left, groups, strict=True))
            if tokens > slots * START_TOKENS or self._round < slots:
                return None  # enough to learn from probes before the rest is planned
        chunks = [
            Chunk(count, size, sizer.request_time(group.pack_key))
            for count, size, group in zip(left, most, groups, strict=True)
        ]
        starts_left = self._slot_model.starts_left(now)
        for request in fill_slots(chunks, self._slot_model.free(now), starts_left, sizer.between_starts_s):
            group = groups[request.chunk]
            if everything or len(group.slices) >= request.prompts:
                return group, request.prompts
        return None

    def _fullest(self, everything: bool) -> tuple[Group, int] | None:
        """A group with enough for a request and that size; the oldest one where none has enough and none will have."""
        while self._filled:
            key = next(iter(self._filled))
            group = self._groups.get(key)
            if group is not None and len(group.slices) >= (size := self._size(group)):
                return group, size
            del self._filled[key]
        oldest = min(islice(self._groups.values(), _LOOKED_AT), key=lambda group: group.slices[0][0])
        count, size = len(oldest.slices), self._size(oldest)
        if count >= size:
            return oldest, size
        waited = self._added - oldest.slices[0][0]
        return (oldest, count) if everything or self.full or waited > _HELD[1] else None

    def _size(self, group: Group) -> int:
        """How many slices of the group a request is to carry, while there is plenty."""
        if isinstance(self._pack, int):
            return min(self._pack, group.pack_key.limit)
        if group.pack_key.limit == 1:
            return 1
        size = self._sizer.best(group.pack_key)
        if not self._sizer.known(group.pack_key):
            shares = _SECOND_SHARES if self._sizer.seen(group.pack_key) else _PROBE_SHARES
            size //= shares[self._probes % len(shares)]
        return max(1, size)

    def _awaits_probes(self, now: float) -> bool:
        """Whether a round of probes is on its way: from their answers follows how large the next requests may be."""
        if self._pack != "auto":
            return False
        packable = False  # as far as can be seen
        for group in islice(self._groups.values(), _LOOKED_AT):
            if self._sizer.known(group.pack_key):
                return False
            packable |= len(group.slices) > 1 and group.pack_key.limit > 1
        if not packable:
            return False
        in_flight, round_ = len(self._slot_model), self._round
        just_sent = now - self._probed_at <= _PROBE_S
        return in_flight >= round_ or (in_flight > 0 and self._probes % round_ == 0 and just_sent)

    @property
    def _round(self) -> int:
        """Probes at once: one for each slot, but not many of the starts where those are scarce."""
        limits = self._slot_model.limits
        return limits.slots if limits.starts is None else min(limits.slots, max(3, limits.starts // _PROBE_STARTS))

    def _take(self, group: Group, size: int, now: float) -> tuple[PackKey, Pack]:
        first = group.slices[0][1]
        taken = (first,) if size == 1 else next(fill_requests((item for _, item in islice(group.slices, size)), size))
        for _ in taken:
            group.slices.popleft()
        if not group.slices:
            del self._groups[group.pack_key.key]
            self._filled.pop(group.pack_key.key, None)
        self._release(taken)
        self.pack = len(taken)
        if not self._sizer.known(group.pack_key):
            self._probes += 1
            self._probed_at = now
        return group.pack_key, taken

    def _release(self, slices: Pack) -> None:
        self.held -= len(slices)
        self.held_bytes -= sum([item.held_bytes for item in slices])

    def _add_whole(self, slices: list[tuple[PackKey, Slice]]) -> None:
        """The line as it was asked: its own prompts together, as far as they fit."""
        by_key: dict[str, tuple[PackKey, list[Slice]]] = {}
        for pack_key, item in slices:
            by_key.setdefault(pack_key.key, (pack_key, []))[1].append(item)
        for pack_key, mine in by_key.values():
            self.put_back(pack_key, fill_requests(mine, pack_key.limit))
