"""From lines to requests: holds what was read, groups it by shape, and says what to send next. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice

from brimful.packing.pack_size import BLIND_WAVES, START_PROMPTS, Lot, Tuner, deal_blind, deal_out, fill_up
from brimful.packing.packing import Part, Shape, fitting, parts_of
from brimful.packing.request_size import MAX_PACK_BYTES
from brimful.packing.slot_model import Pace
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
    __slots__ = ("parts", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.parts: deque[tuple[int, Part]] = deque()


class Planner:
    """``add`` units, ask for the ``next`` request's parts. Whatever order they leave in, each part leaves once."""

    def __init__(self, profile: Profile, pack: PackOption, tuner: Tuner, pace: Pace) -> None:
        self._profile = profile
        self._pack = pack
        self._tuner = tuner
        self._pace = pace
        self._shapes: dict[str, Shape] = {}
        self._groups: dict[str, Group] = {}
        self._filled: dict[str, None] = {}
        """Groups with enough for a request, as far as known, in the order in which they came to it."""
        self._ready: deque[tuple[Shape, tuple[Part, ...]]] = deque()
        self._dealt: deque[tuple[Shape, tuple[Part, ...]]] = deque()
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
        parts = list(parts_of(unit, self._profile, self._shapes))
        if self._pack == "off":
            self._add_whole(parts)
            return
        for shape, part in parts:
            self._added += 1
            self.held += 1
            self.held_bytes += part.size
            group = self._groups.get(shape.key)
            if group is None:
                group = self._groups[shape.key] = Group(shape)
            group.parts.append((self._added, part))
            if len(group.parts) >= self._size(group):
                self._filled[shape.key] = None

    def put_back(self, shape: Shape, packs: Iterable[tuple[Part, ...]]) -> None:
        """Packs to be sent as they are, before all else."""
        for parts in packs:
            self._hold(shape, parts)

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
            wanted = max(wanted, 2 * self._pace.limits.slots * START_PROMPTS)
        return self.held >= min(most, max(least, wanted))

    def next(self, now: float, more: int | None, flush: bool) -> tuple[Shape, tuple[Part, ...]] | None:
        """The next request, or None: read on first (or nothing is held).

        ``more``: lines not added yet, None = nobody knows. ``flush``: nothing more comes just now, so that waiting
        for fuller requests would leave slots idle.
        """
        if self._dealt and all(self._tuner.known(shape) for shape, _ in self._dealt):
            self._undeal()
        if dealt := self._ready or self._dealt:
            shape, parts = dealt.popleft()
            self.held -= len(parts)
            self.held_bytes -= sum(part.size for part in parts)
            return shape, parts
        if not self._groups:
            return None
        everything = flush or more == 0
        chosen = self._choose(now, more, everything)
        if chosen is None:
            return self.next(now, more, flush) if self._dealt else None
        group, size = chosen
        return group.shape, self._take(group, size)

    # -- which, and how much of it ---------------------------------------------------------------------------------

    def _choose(self, now: float, more: int | None, everything: bool) -> tuple[Group, int] | None:
        if self._pack == "auto":
            planned = self._endgame(now, more, everything)
            if planned is not None or self._dealt:
                return planned
        while self._filled:
            group = self._groups.get(next(iter(self._filled)))
            if group is not None and len(group.parts) >= self._size(group):
                return group, self._size(group)
            del self._filled[next(iter(self._filled))]
        oldest = min(islice(self._groups.values(), _LOOKED_AT), key=lambda group: group.parts[0][0])
        if len(oldest.parts) >= self._size(oldest):
            return oldest, self._size(oldest)
        waited = self._added - oldest.parts[0][0]
        if not (everything or self.full or waited > _HELD[1]):
            return None
        # Into equal parts: 1,001 of 1,000 are two of about 500.
        count, size = len(oldest.parts), self._size(oldest)
        return oldest, -(-count // -(-count // size))

    def _size(self, group: Group) -> int:
        """How many parts of the group a request is to carry, while there is plenty."""
        if isinstance(self._pack, int):
            return min(self._pack, group.shape.limit)
        if self._tuner.known(group.shape):
            return self._tuner.best(group.shape)
        size = self._tuner.start(group.shape)
        if self._share is not None:  # not more at a time than half of what each slot is to do in all
            size = max(1, min(size, int(self._share / _work(group.shape, 1) / 2)))
        return max(1, size // _LADDER[self._sent_unknown]) if self._sent_unknown < len(_LADDER) else size

    def _endgame(self, now: float, more: int | None, everything: bool) -> tuple[Group, int] | None:
        """Once all that is left is known and not much: deal it out so that the slots end together."""
        groups = list(self._groups.values())
        slots = self._pace.limits.slots
        if slots > _SIMULATED_SLOTS or len(groups) > _SIMULATED_LOTS or (more is None and not everything):
            return None
        left = self.held + (more or 0)
        grown = left / self.held
        known = all(self._tuner.known(group.shape) for group in groups)
        lots = []
        for group in groups:
            shape = group.shape
            most = self._tuner.best(shape) if known else self._tuner.start(shape)
            seconds = partial(self._tuner.predicted_s, shape) if known else partial(_work, shape)
            lots.append(Lot(max(1, round(grown * len(group.parts))), most, seconds))
        if not known:
            self._share = sum(lot.count * lot.seconds(1) for lot in lots) / slots
            if self._share > self._tuner.start_tokens:
                return None  # enough of it to learn from the first requests before the rest is dealt out
        if sum(-(-lot.count // lot.most) for lot in lots) > (_END_WAVES if known else BLIND_WAVES) * slots:
            return None
        starts_left, start_s = self._pace.starts_left(now), self._tuner.between_starts_s
        if known:
            for lot, group in zip(lots, groups, strict=True):
                lot.most = min(2 * lot.most, self._tuner.most_prompts(group.shape))
            free = self._pace.free(now)
            if len(lots) == 1 and (starts_left is None or starts_left >= _END_WAVES * slots):
                size = fill_up(lots[0], free)
                return (groups[0], size) if everything or len(groups[0].parts) >= size else None
            sizes = deal_out(lots, free, starts_left, start_s, _END_WAVES + 1)
        elif not more and not self._sent_unknown:
            at_once = slots if starts_left is None else max(1, min(slots, starts_left))
            self._deal(groups, deal_blind(lots, at_once))
            return None
        else:
            return None
        longest_first = sorted(zip(groups, lots, sizes, strict=True), key=lambda row: -row[1].seconds(row[2]))
        for group, _, size in longest_first:
            if everything or len(group.parts) >= size:
                return group, size
        return None

    def _deal(self, groups: list[Group], requests: list[tuple[int, int]]) -> None:
        """All that is held becomes requests: each of a group's next so many parts."""
        for n, size in requests:
            group = groups[n]
            parts = [group.parts.popleft()[1] for _ in range(min(size, len(group.parts)))]
            self._dealt.extend((group.shape, some) for some in fitting(parts, size))
        self._groups.clear()
        self._filled.clear()
        self.pack = max(len(parts) for _, parts in self._dealt)

    def _undeal(self) -> None:
        for shape, parts in self._dealt:
            group = self._groups.setdefault(shape.key, Group(shape))
            for part in parts:
                self._added += 1
                group.parts.append((self._added, part))
            if len(group.parts) >= self._size(group):
                self._filled[shape.key] = None
        self._dealt.clear()

    # -- in and out ------------------------------------------------------------------------------------------------

    def _take(self, group: Group, size: int) -> tuple[Part, ...]:
        taken: list[Part] = []
        weight = 0
        while group.parts and len(taken) < size:
            part = group.parts[0][1]
            if taken and weight + part.size > MAX_PACK_BYTES:
                break
            group.parts.popleft()
            taken.append(part)
            weight += part.size
        if not group.parts:
            del self._groups[group.shape.key]
            self._filled.pop(group.shape.key, None)
        self.held -= len(taken)
        self.held_bytes -= weight
        self.pack = len(taken)
        if not self._tuner.known(group.shape):
            self._sent_unknown += 1
        return tuple(taken)

    def _add_whole(self, parts: list[tuple[Shape, Part]]) -> None:
        """The line as it was asked: its own prompts together, as far as they fit."""
        by_shape: dict[str, tuple[Shape, list[Part]]] = {}
        for shape, part in parts:
            by_shape.setdefault(shape.key, (shape, []))[1].append(part)
        for shape, mine in by_shape.values():
            held: list[Part] = []
            weight = 0
            for part in mine:
                if held and (len(held) >= shape.limit or weight + part.size > MAX_PACK_BYTES):
                    self._hold(shape, tuple(held))
                    held, weight = [], 0
                held.append(part)
                weight += part.size
            self._hold(shape, tuple(held))

    def _hold(self, shape: Shape, parts: tuple[Part, ...]) -> None:
        self._ready.append((shape, parts))
        self.held += len(parts)
        self.held_bytes += sum(part.size for part in parts)


def _work(shape: Shape, prompts: int) -> float:
    """A stand-in for seconds while nothing is known: the tokens at most."""
    return float(prompts * shape.n * (shape.max_tokens or 256))
