"""What a run's reader and writer exchange with its driver: one line's wish, what came of it, and manifests.

A *manifest* says what a request carries, in Redis and in messages, without prompts: a list of pieces
``[line, id, prompt_index, [choice_index…]]``, one per prompt of the (packed) request and in its order. All pieces of
one request have the same number of choices, which is its ``n``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from brimful.errors import SettingError
from brimful.outcome import Failure, Outcome, Rollout
from brimful.request import Request

PackOption = Literal["off", "auto"] | int
"""How many prompts share a request: none do, as many as pay, or this many at most."""


def parse_pack(text: str | int) -> PackOption:
    """From ``--pack``: ``off``, ``auto`` or a whole number of at least 1. Raises SettingError."""
    word = str(text).strip().lower()
    if word == "auto":
        return "auto"
    if word in ("off", "1"):
        return "off"
    if not (word.isascii() and word.isdigit()) or int(word) < 1:
        raise SettingError(f"--pack: {text!r} is none of off, auto, or a whole number of at least 1")
    return int(word)


class Piece(NamedTuple):
    """One prompt of a request, as the line it came from knows it."""

    line: int
    id: str
    prompt_index: int
    """The prompt's place in its LINE."""
    choices: tuple[int, ...]
    """The choice indexes, in the line's terms, that this request's choices of the prompt stand for, in order."""


Manifest = tuple[Piece, ...]


def manifest_message(manifest: Iterable[Piece]) -> list[list[Any]]:
    """JSON-ready; :func:`manifest_from` is its inverse."""
    return [[piece.line, piece.id, piece.prompt_index, list(piece.choices)] for piece in manifest]


def manifest_from(raw: Iterable[Any]) -> Manifest:
    """Raises ValueError or TypeError when it is no manifest."""
    return tuple(
        Piece(int(line), str(id), int(prompt), tuple(int(choice) for choice in choices))
        for line, id, prompt, choices in raw
    )


@dataclass(frozen=True, slots=True)
class Unit:
    """One input line's wish."""

    line: int
    """1-based place in the whole input."""
    id: str
    request: Request
    """As asked on that line: its own n and all its prompts."""
    wanted: tuple[tuple[int, int], ...] | None = None
    """``(prompt_index, choice_index)`` still missing; None = all of them."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Some or all rollouts of one line, from one request's outcome."""

    line: int
    id: str
    rollouts: list[Rollout]
    """Indexes in the LINE's terms."""
    model: str
    usage: dict[str, Any] | None
    """The line's part of the request's usage: whole where it was alone; where lines shared it, their parts add up to
    the request's (:func:`brimful.packing.usage.share_usage`, by the lines' number of rollouts)."""
    outcome: Outcome
    """The whole request's; ``outcome.completion`` is None here, its rollouts having been dealt out."""
    packed: int
    """Lines that shared the request; 1 = alone."""
    choices: tuple[dict[str, Any], ...] = ()
    """The provider's own choice objects, parallel to ``rollouts``: for chat messages, tool calls and logprobs."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Some or all rollouts of one line that ended in a failure."""

    line: int
    id: str
    request: Request | None
    """The line's own request where the driver still knows it."""
    wanted: tuple[tuple[int, int], ...]
    failure: Failure
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an earlier submitter of the same run left behind."""

    delivered: list[Delivered]
    """Finished by workers, not yet collected. Not planned again."""
    outstanding: frozenset[tuple[int, int, int]]
    """``(line, prompt_index, choice_index)`` still queued or on the wire; they come with :meth:`Driver.deliveries`."""


@dataclass(slots=True)
class DriveStatus:
    """A driver's figures so far, for displays and the summary. Counts are of this submitter's life alone."""

    lines_taken: int = 0
    """Units taken from the input."""
    queued: int = 0
    """Requests enqueued that have not ended: waiting in a queue, for a grant, or on the wire."""
    planned: int = 0
    """Lines (or parts of them) held back here, not yet enqueued."""
    requests: int = 0
    """Requests that ended, however they did."""
    packed: int = 0
    """Those of them that carried more than one line."""
    rollouts: int = 0
    """Rollouts delivered."""
    failures: int = 0
    """Failed records delivered."""
    parted: int = 0
    """Packed requests that failed and were asked anew in smaller ones."""
    attempts: int = 0
    """Requests that reached the wire: the starts that were used."""
    rate_limited: int = 0
    """429s met."""
    retries: dict[str, int] = field(default_factory=dict)
    """Failed attempts by cause."""
    tokens: int = 0
    """``usage.total_tokens``, summed over the requests that ended well."""
    pack: int = 1
    """Prompts a request carries at present."""
    redelivered: int = 0
    """Shards enqueued again since they were found nowhere."""
    stopping: str | None = None
    """Why nothing more is enqueued: a cause of :class:`brimful.outcome.Cause`, ``"drain"`` or ``"stop"``."""
