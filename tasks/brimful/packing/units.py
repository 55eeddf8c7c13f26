"""What a run's reader and writer exchange with its driver: units of work, what came of them, and manifests.

A *manifest* says which rollouts a request carries, in Redis and in messages, without the prompts: a list of entries
``[line, id, prompt_index, [choice_index…]]``, one per prompt of the request and in its order. All entries of one
request have the same number of choices, which is its ``n``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from brimful.errors import SettingError
from brimful.names import MOST_WEIGHT
from brimful.outcome import Failure, Outcome, Rollout
from brimful.packing.slot_model import Limits
from brimful.packing.usage import share_usage
from brimful.request import Request

PackOption = Literal["off", "auto"] | int
"""How many prompts share a request: only those of one line, as many as pay, or at most this many."""
WEIGHT = "weight"
"""Field of each request in a shard's message: its run's share beside other runs. Absent = 1."""


def parse_pack(text: str | int, name: str = "--pack") -> PackOption:
    """``off``, ``auto`` or a whole number of at least 1. Raises SettingError, naming it ``name``."""
    word = str(text).strip().lower()
    if word == "auto":
        return "auto"
    if word in ("off", "1"):
        return "off"
    if not (word.isascii() and word.isdigit()) or int(word) < 1:
        raise SettingError(f"{name}: {text!r} is not off, auto or a whole number of at least 1")
    return int(word)


def checked_weight(weight: float) -> float:
    """A run's weight. Raises SettingError where it is out of range."""
    if not _is_weight(weight):
        raise SettingError(f"weight: {weight!r} is not a number from {1 / MOST_WEIGHT:g} to {MOST_WEIGHT:g}")
    return weight


def weight_of(request: Mapping[str, Any]) -> float:
    """The weight of its run, from a request's message; 1 if it is missing or invalid."""
    weight = request.get(WEIGHT)
    return float(weight) if weight is not None and _is_weight(weight) else 1.0


def _is_weight(raw: Any) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool) and 1 / MOST_WEIGHT <= raw <= MOST_WEIGHT


class ManifestEntry(NamedTuple):
    """One prompt of a request, by the line it came from."""

    line: int
    id: str
    prompt_index: int
    """The prompt's place in its line."""
    choices: tuple[int, ...]
    """The line's choice indexes that this request's choices of the prompt stand for, in order."""


Manifest = tuple[ManifestEntry, ...]


def manifest_message(manifest: Iterable[ManifestEntry]) -> list[list[Any]]:
    """JSON-ready; :func:`manifest_from` is its inverse."""
    return [[line, id, prompt, list(choices)] for line, id, prompt, choices in manifest]


def manifest_from(raw: Iterable[Any]) -> Manifest:
    """Raises ValueError or TypeError where ``raw`` is not a manifest."""
    return tuple(
        ManifestEntry(int(line), str(id), int(prompt), tuple(int(choice) for choice in choices))
        for line, id, prompt, choices in raw
    )


@dataclass(slots=True)  # not frozen, which takes three times as long to make: a run has one for each line
class Unit:
    """One input line to be sampled, and which of its rollouts are still missing."""

    line: int
    """1-based place in the whole input."""
    id: str
    request: Request
    """The line's own request: its n and all its prompts."""
    wanted: tuple[tuple[int, int], ...] | None = None
    """``(prompt_index, choice_index)`` of the missing rollouts; None = all of them."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The line's fields that are not sent, JSON-ready. They stay with the submitter, which adds them to the output."""
    columns_bytes: int = 0
    """What they take in memory, about."""
    given_id: str | int | float | None = None
    """The id with the type that the line gives it; None: as ``id``."""


@dataclass(slots=True)
class Delivered:
    """Some or all rollouts of one line, from one request's outcome."""

    line: int
    id: str
    rollouts: list[Rollout]
    """With the line's prompt and choice indexes."""
    model: str
    usage: dict[str, Any] | None
    """The request's usage if the line was alone in it, else the line's share by its number of rollouts
    (:func:`brimful.packing.usage.share_usage`)."""
    outcome: Outcome
    """The whole request's."""
    packed: int
    """Lines that shared the request; 1 = alone."""
    asked_model: str = ""
    """The model that was asked for; empty where that is not known."""

    @property
    def response(self) -> dict[str, Any]:
        """The other fields of the provider's answer to the request: ``id``, ``created``, ``system_fingerprint``, …"""
        answer = self.outcome.completion or {}
        return {name: value for name, value in answer.items() if name not in ("choices", "usage")}

    def rollout_usages(self) -> list[dict[str, Any] | None]:
        """Each rollout's share of ``usage``, in proportion to the length of its text, the nearest to tokens that is
        known here. Choice 0 pays for its prompt."""
        if len(self.rollouts) == 1:
            return share_usage(self.usage, (1,))
        return share_usage(
            self.usage,
            [max(1, len(rollout.text)) for rollout in self.rollouts],
            [int(rollout.choice_index == 0) for rollout in self.rollouts],
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """Some or all rollouts of one line that ended in a failure."""

    line: int
    id: str
    request: Request | None
    """The line's own request; None where it came from an earlier submitter."""
    wanted: tuple[tuple[int, int], ...]
    failure: Failure
    outcome: Outcome
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its record."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an earlier submitter of the same run left behind."""

    delivered: list[Delivered]
    """Finished by workers and not yet collected."""
    outstanding: frozenset[tuple[int, int, int]]
    """``(line, prompt_index, choice_index)`` still queued or being sampled; :meth:`Driver.deliveries` yields them."""
    unmetered_tokens: int = 0
    """Of the outcomes that were not collected, failures included."""


@dataclass(slots=True)
class DriveStatus:
    """A driver's figures so far, for displays and the summary. They count this submitter's work only."""

    lines_taken: int = 0
    """Units taken from the input."""
    queued: int = 0
    """Requests enqueued that have not ended: waiting in a queue or for a grant, or sent."""
    requests: int = 0
    """Requests that ended, with a completion or a failure."""
    packed: int = 0
    """Those of them that carried more than one line."""
    rollouts: int = 0
    """Rollouts delivered."""
    failures: int = 0
    """Failed records delivered."""
    split: int = 0
    """Packed requests that failed and were replaced by smaller ones."""
    attempts: int = 0
    """Requests sent to the provider: the starts that were used."""
    rate_limited: int = 0
    """Answers of 429."""
    retries: dict[str, int] = field(default_factory=dict)
    """Failed attempts by cause."""
    tokens: int = 0
    """``usage.total_tokens``, summed over the requests that succeeded."""
    unmetered_tokens: int = 0
    """:attr:`Outcome.unmetered_tokens`, summed over all requests that ended."""
    pack: int = 1
    """Prompts in the latest request."""
    limits: Limits | None = None
    """The key's limits, as the driver saw them last; None where it has not looked."""
    redelivered: int = 0
    """Shards enqueued again because no queue or worker had them."""
    held: bool = False
    """Nothing is enqueued until the run is resumed."""
    stopping: str | None = None
    """Why nothing more is enqueued: a cause of :class:`brimful.outcome.Cause`, ``"refused"``, ``"drain"`` or
    ``"stop"``."""
