"""The rollouts that checks have not decided about, by line of the input, and requests for new ones. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from brimful.packing.units import Unit

Pair = tuple[int, int]
"""``(prompt_index, choice_index)``"""
SEED_STEP = 1_000_000
"""What each further sample adds to a line's seed: far from the seeds of other choices and of other lines."""
_SEEDS = (1 << 31, 1 << 32, 1 << 63)
"""Providers take seeds below one of these."""


def moved_seed(seed: int, rejected: int) -> int:
    """The seed for a choice of which ``rejected`` samples were not accepted. It stays in the range of ``seed``."""
    limit = next((limit for limit in _SEEDS if 0 <= seed < limit), None)
    moved = seed + rejected * SEED_STEP
    return moved if limit is None else moved % limit


def unit_to_resample(unit: Unit, pairs: Iterable[Pair], rejected: int) -> Unit:
    """Asks for these rollouts of the line, of which ``rejected`` samples each were not accepted."""
    request, seed = unit.request, unit.request.fields.get("seed")
    if rejected and isinstance(seed, int):
        request = replace(request, fields={**request.fields, "seed": moved_seed(seed, rejected)})
    return replace(unit, request=request, wanted=tuple(sorted(pairs)))


@dataclass(slots=True)
class _Open:
    unit: Unit | None = None
    """The line; None where an earlier try has asked for it and the input does not hold it any more."""
    parts: list[set[Pair]] = field(default_factory=list)
    """In flight or being checked, by the unit that asked for them."""
    waiting: int = 0
    """Rollouts that will be asked for again."""
    incomplete: bool = False
    """Further rollouts of it are still to be asked for, maybe by the run's next try."""


class OpenLines:
    def __init__(self) -> None:
        self._lines: dict[int, _Open] = {}
        self._waiting = 0
        self.in_flight = 0
        """Rollouts in flight or being checked."""

    @property
    def busy(self) -> bool:
        """Whether rollouts are in flight, being checked, or to be asked for again."""
        return self.in_flight > 0 or self._waiting > 0

    def unit(self, line: int) -> Unit | None:
        """The line, if it is open and known."""
        found = self._lines.get(line)
        return None if found is None else found.unit

    def expect(self, line: int, pairs: Iterable[Pair], unit: Unit | None) -> None:
        """An earlier try has asked for these rollouts. The line stays open until it was :meth:`read` once more."""
        self.ask(line, pairs, unit)
        self.leave(line)

    def leave(self, line: int) -> None:
        """Some rollouts of the line are left to the source, or to the run's next try."""
        if (found := self._lines.get(line)) is not None:
            found.incomplete = True

    def read(self, line: int) -> None:
        if (found := self._lines.get(line)) is not None:
            found.incomplete = False

    def ask(self, line: int, pairs: Iterable[Pair], unit: Unit | None = None) -> None:
        found = self._lines.setdefault(line, _Open())
        found.unit = found.unit or unit
        if part := set(pairs):
            found.parts.append(part)
            self.in_flight += len(part)

    def end(self, line: int, pair: Pair, *, again: bool = False) -> None:
        """A rollout was accepted or given up; or it will be asked for ``again``."""
        if (found := self._lines.get(line)) is None:
            return
        found.waiting += again
        self._waiting += again
        for part in found.parts:
            if pair in part:
                part.discard(pair)
                self.in_flight -= 1
        found.parts = [part for part in found.parts if part]

    def waited(self, line: int, count: int) -> None:
        """So many rollouts are asked for again, or never."""
        if (found := self._lines.get(line)) is not None:
            found.waiting -= count
            self._waiting -= count

    def held(self, line: int) -> tuple[int, int]:
        """``(rollouts, requests at least)`` of the line that are in flight or being checked."""
        parts = self._lines[line].parts if line in self._lines else []
        return sum(map(len, parts)), len(parts)

    def close_if_done(self, line: int) -> bool:
        """Whether nothing of the line is in flight, being checked, or still to be asked for; it is then forgotten."""
        found = self._lines.get(line)
        if found is not None and (found.parts or found.waiting or found.incomplete):
            return False
        self._lines.pop(line, None)
        return True
