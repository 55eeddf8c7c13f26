"""The samples of one prompt, as ``Fleet.group`` yields them, and the options of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from brimful.client.arguments import is_number
from brimful.client.mapping import Asked
from brimful.errors import SettingError
from brimful.outcome import Failure, Rollout

Stragglers = Literal["wait", "drop"]
"""What becomes of a group that is not full at the deadline: it is given with what it has, or not at all."""
GroupPack = Literal["auto", "off", "group"]
"""Whether a group's samples share a request (as its ``n``): where that is not slower, never, or always."""


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt.

    ``rewards = [score(group.prompt, text) for text in group.texts]``
    """

    index: int
    """Its prompt's place, from 0."""
    id: str
    """Its prompt's ``id`` field, else its index."""
    prompt: Asked
    """As it was given."""
    wanted: int
    """The n that was asked for."""
    samples: list[Rollout] = field(default_factory=list)
    """The first n that came, or fewer; ``choice_index`` is a sample's number, from 0, in whose order they are."""
    missing: Mapping[int, Failure] = field(default_factory=dict)
    """Of a group that is not full: each sample that did not come, by its number, and why. What had not ended at the
    deadline has the cause ``cancelled``."""
    attempts: int = 0
    """Calls to the provider, failed ones included; not those that were cancelled."""

    @property
    def full(self) -> bool:
        """Whether all n samples are there."""
        return len(self.samples) >= self.wanted

    @property
    def texts(self) -> list[str]:
        """The samples' texts: n of them, or fewer in a group that is not full."""
        return [sample.text for sample in self.samples]


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How prompts are sampled in groups; see :meth:`brimful.AsyncFleet.group`."""

    n: int
    deadline_s: float | None
    oversample: int
    stragglers: Stragglers
    pack: GroupPack

    def __post_init__(self) -> None:
        """Raises SettingError."""
        for name, fits in (
            ("n", _is_whole(self.n, 1)),
            ("deadline_s", self.deadline_s is None or (is_number(self.deadline_s) and self.deadline_s > 0)),
            ("oversample", _is_whole(self.oversample, 0)),
            ("stragglers", self.stragglers in ("wait", "drop")),
            ("pack", self.pack in ("auto", "off", "group")),
        ):
            if not fits:
                raise SettingError(f"{name}={getattr(self, name)!r}: {_RANGES[name]}")
        if self.stragglers == "drop" and self.deadline_s is None:
            raise SettingError("stragglers='drop' needs a deadline_s, at which groups that are not full are dropped")
        if self.pack == "group" and self.oversample:
            raise SettingError("pack='group' sends a group's samples in one request, so oversample must be 0")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


_RANGES = {
    "n": "must be a whole number of at least 1",
    "deadline_s": "must be above 0, or None to wait without end",
    "oversample": "must be a whole number of at least 0",
    "stragglers": "is not wait or drop",
    "pack": "is not auto, off or group",
}
