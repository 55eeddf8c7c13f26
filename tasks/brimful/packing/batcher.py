"""From lines to requests: holds what was read, groups it by pack_key, and says what to send next. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice

from brimful.packing.pack_size import BLIND_WAVES, START_PROMPTS, Lot, PackSizer, deal_blind, deal_out, fill_up
from brimful.packing.packing import PackKey, Slice, fill_requests, slices_of
from brimful.packing.request_size import MAX_PACK_BYTES
from brimful.packing.slot_model import SlotModel
from brimful.packing.units import PackOption, Unit
from brimful.profile import Profile

_HELD = (256, 40_000)
"""Parts held back at least and at most, so that there is something to choose from."""
_HELD_BYTES = 48 * 1024 * 1024
_END_WAVES = 3
"""From so many waves of full requests on, the rest is dealt out as one."""
_SIMULATED_SLOTS = 128
_SIMULATED_LOTS = 64
_LOOKED_AT = 64
"""Groups among which the oldest is looked for."""
_LADDER = (16, 8, 4, 2)
"""The first requests are this much smaller than those that follow: different sizes teach the most."""


class Group:
    __slots__ = ("pack_key", "slices")

    def __init__(self, pack_key: PackKey) -> None:
        self.pack_key = pack_key
        self.slices: deque[tuple[int, Slice]] = deque()


class Batcher:
    """``add`` units, ask for the ``next`` request's slices. Whatever order they leave in, each slice leaves once."""

    def __init__(self, profile: Profile, pack: PackOption, sizer: PackSizer, slot_model: SlotModel) -> None:
        self._profile = profile
        self._pack = pack
        self._sizer = sizer
        self._slot_model = slot_model
        self._pack_keys: dict[str, PackKey] = {}
        self._groups: dict[str, Group] = {}
        self._filled: dict[str, None] = {}
        """Groups with enough for a request, as far as known, in the order in which they came to it."""
        self._ready: deque[tuple[PackKey, tuple[Slice, ...]]] = deque()
        self._dealt: deque[tuple[PackKey, tuple[Slice, ...]]] = deque()
        """Dealt out while nothing was known; what is left of it when something is, is dealt out anew."""
        self._share: float | None = None
        """Work for each slot, while nothing is known but the whole."""
        self._added = 0
        self._sent_unknown = 0
        self.held = 0
        """Parts."""
        self.held_bytes = 0
        self.pack = 1
        """Prompts that the last packed request carried."""

    def add(self, unit: Unit) -> None:
        """Raises RequestTooLarge where not even one choice of it fits a request; it is then not held."""
        slices = list(slices_of(unit, self._profile, self._pack_keys))
        if self._pack == "off":
            self._add_whole(slices)
            return
        for pack_key, slice in slices:
            self._added += 1
            self.held += 1
            self.held_bytes += slice.size
            group = self._groups.get(pack_key.key)
            if group is None:
                group = self._groups[pack_key.key] = Group(pack_key)
            group.slices.append((self._added, slice))
            if len(group.slices) >= self._size(group):
                self._filled[pack_key.key] = None

    def put_back(self, pack_key: PackKey, packs: Iterable[tuple[Slice, ...]]) -> None:
        """Packs to be sent as they are, before all else."""
        for slices in packs:
            self._hold(pack_key, slices)

    @property
    def full(self) -> bool:
        """There is enough to choose from; reading further would only take memory."""
        if self._pack == "off":
            return self.held >= _HELD[0]
        if self.held_bytes >= _HELD_BYTES:
            return True
        least, most = _HELD
        if isinstance(self._pack, int):
            wanted = 4 * self._pack
        else:
            kinds = min(8, len(self._groups))
            wanted = kinds * max([2 * self._size(group) for group in islice(self._groups.values(), kinds)], default=0)
            wanted = max(wanted, 2 * self._slot_model.limits.slots * START_PROMPTS)
        return self.held >= min(most, max(least, wanted))

    def next(self, now: float, more: int | None, flush: bool) -> tuple[PackKey, tuple[Slice, ...]] | None:
        """The next request, or None: read on first (or nothing is held).

        ``more``: lines not added yet, None = nobody knows. ``flush``: nothing more comes just now, so that waiting
        for fuller requests would leave slots idle.
        """
        if self._dealt and all(self._sizer.known(pack_key) for pack_key, _ in self._dealt):
            self._undeal()
        if dealt := self._ready or self._dealt:
            pack_key, slices = dealt.popleft()
            self.held -= len(slices)
            self.held_bytes -= sum(slice.size for slice in slices)
            return pack_key, slices
        if not self._groups:
            return None
        everything = flush or more == 0
        chosen = self._choose(now, more, everything)
        if chosen is None:
            return self.next(now, more, flush) if self._dealt else None
        group, size = chosen
        return group.pack_key, self._take(group, size)

    # -- which, and how much of it ---------------------------------------------------------------------------------

    def _choose(self, now: float, more: int | None, everything: bool) -> tuple[Group, int] | None:
        if self._pack == "auto":
            planned = self._endgame(now, more, everything)
            if planned is not None or self._dealt:
                return planned
        while self._filled:
            group = self._groups.get(next(iter(self._filled)))
            if group is not None and len(group.slices) >= self._size(group):
                return group, self._size(group)
            del self._filled[next(iter(self._filled))]
        oldest = min(islice(self._groups.values(), _LOOKED_AT), key=lambda group: group.slices[0][0])
        if len(oldest.slices) >= self._size(oldest):
            return oldest, self._size(oldest)
        waited = self._added - oldest.slices[0][0]
        if not (everything or self.full or waited > _HELD[1]):
            return None
        # Into equal slices: 1,001 of 1,000 are two of about 500.
        count, size = len(oldest.slices), self._size(oldest)
        return oldest, -(-count // -(-count // size))

    def _size(self, group: Group) -> int:
        """How many slices of the group a request is to carry, while there is plenty."""
        if isinstance(self._pack, int):
            return min(self._pack, group.pack_key.limit)
        if self._sizer.known(group.pack_key):
            return self._sizer.best(group.pack_key)
        size = self._sizer.start(group.pack_key)
        if self._share is not None:  # not more at a time than half of what each slot is to do in all
            size = max(1, min(size, int(self._share / _work(group.pack_key, 1) / 2)))
        return max(1, size // _LADDER[self._sent_unknown]) if self._sent_unknown < len(_LADDER) else size

    def _endgame(self, now: float, more: int | None, everything: bool) -> tuple[Group, int] | None:
        """Once all that is left is known and not much: deal it out so that the slots end together."""
        groups = list(self._groups.values())
        slots = self._slot_model.limits.slots
        if slots > _SIMULATED_SLOTS or len(groups) > _SIMULATED_LOTS or (more is None and not everything):
            return None
        left = self.held + (more or 0)
        grown = left / self.held
        known = all(self._sizer.known(group.pack_key) for group in groups)
        lots = []
        for group in groups:
            pack_key = group.pack_key
            most = self._sizer.best(pack_key) if known else self._sizer.start(pack_key)
            seconds = partial(self._sizer.predicted_s, pack_key) if known else partial(_work, pack_key)
            lots.append(Lot(max(1, round(grown * len(group.slices))), most, seconds))
        if not known:
            self._share = sum(lot.count * lot.seconds(1) for lot in lots) / slots
            if self._share > self._sizer.start_tokens:
                return None  # enough of it to learn from the first requests before the rest is dealt out
        if sum(-(-lot.count // lot.most) for lot in lots) > (_END_WAVES if known else BLIND_WAVES) * slots:
            return None
        starts_left, start_s = self._slot_model.starts_left(now), self._sizer.between_starts_s
        if known:
            for lot, group in zip(lots, groups, strict=True):
                lot.most = min(2 * lot.most, self._sizer.most_prompts(group.pack_key))
            free = self._slot_model.free(now)
            if len(lots) == 1 and (starts_left is None or starts_left >= _END_WAVES * slots):
                size = fill_up(lots[0], free)
                return (groups[0], size) if everything or len(groups[0].slices) >= size else None
            sizes = deal_out(lots, free, starts_left, start_s, _END_WAVES + 1)
        elif not more and not self._sent_unknown:
            at_once = slots if starts_left is None else max(1, min(slots, starts_left))
            self._deal(groups, deal_blind(lots, at_once))
            return None
        else:
            return None
        longest_first = sorted(zip(groups, lots, sizes, strict=True), key=lambda row: -row[1].seconds(row[2]))
        for group, _, size in longest_first:
            if everything or len(group.slices) >= size:
                return group, size
        return None

    def _deal(self, groups: list[Group], requests: list[tuple[int, int]]) -> None:
        """All that is held becomes requests: each of a group's next so many slices."""
        for n, size in requests:
            group = groups[n]
            slices = [group.slices.popleft()[1] for _ in range(min(size, len(group.slices)))]
            self._dealt.extend((group.pack_key, some) for some in fill_requests(slices, size))
        self._groups.clear()
        self._filled.clear()
        self.pack = max(len(slices) for _, slices in self._dealt)

    def _undeal(self) -> None:
        for pack_key, slices in self._dealt:
            group = self._groups.setdefault(pack_key.key, Group(pack_key))
            for slice in slices:
                self._added += 1
                group.slices.append((self._added, slice))
            if len(group.slices) >= self._size(group):
                self._filled[pack_key.key] = None
        self._dealt.clear()

    # -- in and out ------------------------------------------------------------------------------------------------

    def _take(self, group: Group, size: int) -> tuple[Slice, ...]:
        taken: list[Slice] = []
        weight = 0
        while group.slices and len(taken) < size:
            slice = group.slices[0][1]
            if taken and weight + slice.size > MAX_PACK_BYTES:
                break
            group.slices.popleft()
            taken.append(slice)
            weight += slice.size
        if not group.slices:
            del self._groups[group.pack_key.key]
            self._filled.pop(group.pack_key.key, None)
        self.held -= len(taken)
        self.held_bytes -= weight
        self.pack = len(taken)
        if not self._sizer.known(group.pack_key):
            self._sent_unknown += 1
        return tuple(taken)

    def _add_whole(self, slices: list[tuple[PackKey, Slice]]) -> None:
        """The line as it was asked: its own prompts together, as far as they fit."""
        by_shape: dict[str, tuple[PackKey, list[Slice]]] = {}
        for pack_key, slice in slices:
            by_shape.setdefault(pack_key.key, (pack_key, []))[1].append(slice)
        for pack_key, mine in by_shape.values():
            held: list[Slice] = []
            weight = 0
            for slice in mine:
                if held and (len(held) >= pack_key.limit or weight + slice.size > MAX_PACK_BYTES):
                    self._hold(pack_key, tuple(held))
                    held, weight = [], 0
                held.append(slice)
                weight += slice.size
            self._hold(pack_key, tuple(held))

    def _hold(self, pack_key: PackKey, slices: tuple[Slice, ...]) -> None:
        self._ready.append((pack_key, slices))
        self.held += len(slices)
        self.held_bytes += sum(slice.size for slice in slices)


def _work(pack_key: PackKey, prompts: int) -> float:
    """A stand-in for seconds while nothing is known: the tokens at most."""
    return float(prompts * pack_key.n * (pack_key.max_tokens or 256))
