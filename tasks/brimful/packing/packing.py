"""Many prompts in one request, and back. Pure: no clock, no I/O.

A line's wish is cut into *parts*: one prompt with some of its choices. Parts of the same *shape* (model and every other
field but the prompt, number of choices, strings or token lists) may share a request, within the profile's bounds
(:mod:`brimful.packing.request_size`). A line too large for one request is cut over its prompts first, then over its
choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from brimful.names import Mode, Workload
from brimful.outcome import Cause, Failure, Outcome, Rollout, rollouts
from brimful.packing.request_size import MAX_PACK_BYTES, check_line, most_choices, most_prompts, prompt_bytes
from brimful.packing.units import Delivered, Failed, Manifest, Piece, Unit
from brimful.packing.usage import share_usage
from brimful.profile import Profile
from brimful.request import Request

_SHAPES = 4096
"""Shapes that are remembered."""
_describe = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_SAME_FOR_ALL = frozenset({404, 405, 406, 415})
"""Statuses that no prompt is the reason of (no such model, no such endpoint): parting such a pack teaches nothing."""
_NARROWED = frozenset({Cause.TIMEOUT, Cause.SERVER_ERROR, Cause.BAD_ANSWER, Cause.JOB_FAILED})
"""Failures that come and go, but that one prompt, or too large a pack, may bring on again and again."""
_FAN = 8
"""Into how many a pack is parted after such a failure; each part costs a full set of attempts, so fewer levels."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What parts of one request have in common."""

    key: str
    fields: Mapping[str, Any]
    """The provider's fields, without ``prompt``, ``messages`` and ``n``."""
    mode: Mode
    workload: Workload
    n: int
    """Choices of each part."""
    model: str
    max_tokens: int | None
    limit: int
    """Parts that one request may carry; 1 = they go alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """One prompt of a line with the choices wanted of it."""

    unit: Unit
    prompt_index: int
    choices: tuple[int, ...]
    """In the line's terms; as many as the shape's ``n``."""
    prompt: Any
    """A string, a ``list[int]``, or the chat's messages."""
    size: int
    """About its bytes in a body."""

    @property
    def piece(self) -> Piece:
        return Piece(self.unit.line, self.unit.id, self.prompt_index, self.choices)

    @property
    def wanted(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.prompt_index, choice) for choice in self.choices)


@dataclass(frozen=True)
class Packed:
    """One request that stands for its parts, in their order."""

    id: str
    shape: Shape
    parts: tuple[Part, ...]

    @cached_property
    def manifest(self) -> Manifest:
        return tuple([part.piece for part in self.parts])

    @cached_property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def choices(self) -> int:
        return len(self.parts) * self.shape.n

    @property
    def request(self) -> Request:
        """The call as the provider is to see it."""
        fields = dict(self.shape.fields)
        if self.shape.mode is Mode.CHAT:
            fields["messages"] = self.parts[0].prompt
        elif len(self.parts) == 1:
            fields["prompt"] = self.parts[0].prompt
        else:
            fields["prompt"] = [part.prompt for part in self.parts]
        if self.shape.n > 1:
            fields["n"] = self.shape.n
        return Request(fields=fields, id=self.id, mode=self.shape.mode, workload=self.shape.workload)

    @property
    def lines(self) -> int:
        return len({part.unit.line for part in self.parts})


def parts_of(
    unit: Unit, profile: Profile, known: MutableMapping[str, Shape] | None = None
) -> Iterator[tuple[Shape, Part]]:
    """The unit's wanted rollouts, each in exactly one part. Raises RequestTooLarge as ``check_line`` does.

    ``known``: shapes made before under the same profile, by their keys; equal ones are then the same one.
    """
    known = {} if known is None else known
    check_line(unit.request, profile)
    request = unit.request
    prompts = request.prompts
    most = most_choices(request, profile)
    shapes: dict[tuple[str, int, int], Shape] = {}
    for prompt_index, missing in _missing(unit, len(prompts)):
        prompt = prompts[prompt_index]
        kind = "text" if isinstance(prompt, str) else "ids"
        for choices in _even(missing, most):
            # Equal seeds give equal texts: the choices from the third on may not begin again at the first.
            shift = choices[0] if isinstance(request.fields.get("seed"), int) else 0
            about = (kind, len(choices), shift)
            if (shape := shapes.get(about)) is None:
                shape = shapes[about] = _shape(request, kind, len(choices), shift, profile, known)
            yield shape, Part(unit, prompt_index, choices, prompt, prompt_bytes(prompt))


def fitting(parts: Iterable[Part], limit: int) -> Iterator[tuple[Part, ...]]:
    """Parts of one shape dealt into requests of ``limit`` parts at most, and of MAX_PACK_BYTES."""
    held: list[Part] = []
    size = 0
    for part in parts:
        if held and (len(held) >= limit or size + part.size > MAX_PACK_BYTES):
            yield tuple(held)
            held, size = [], 0
        held.append(part)
        size += part.size
    if held:
        yield tuple(held)


def unpack(packed: Packed, outcome: Outcome) -> list[Delivered]:
    """The lines' shares of a successful outcome, in the order in which the request carried them."""
    return deal(packed.manifest, outcome)


def deal(manifest: Manifest, outcome: Outcome) -> list[Delivered]:
    """As :func:`unpack`, from a manifest alone. Raises ValueError where the answer does not fit the manifest."""
    completion = outcome.completion
    if completion is None or not manifest:
        raise ValueError("no completion to deal out")
    n = len(manifest[0].choices)
    lines: dict[int, tuple[str, list[Rollout], list[dict[str, Any]]]] = {}
    seen = 0
    for rollout, choice in zip(rollouts(completion, n), completion["choices"], strict=True):
        try:
            piece = manifest[rollout.prompt_index]
        except IndexError:
            raise ValueError(f"choice for prompt {rollout.prompt_index} of {len(manifest)}") from None
        _, mine, theirs = lines.setdefault(piece.line, (piece.id, [], []))
        choice_index = piece.choices[rollout.choice_index]
        mine.append(Rollout(piece.prompt_index, choice_index, rollout.text, rollout.finish_reason))
        theirs.append(choice)
        seen += 1
    if seen != n * len(manifest):
        raise ValueError(f"{seen} choices for {n * len(manifest)}")
    bare = replace(outcome, completion=None)
    usage = completion.get("usage")
    usage = dict(usage) if isinstance(usage, Mapping) else None
    shares = [usage] if len(lines) == 1 else share_usage(usage, [len(mine) for _, mine, _ in lines.values()])
    return [
        Delivered(
            line=line,
            id=id,
            rollouts=mine,
            model=str(completion.get("model") or ""),
            usage=share,
            outcome=bare,
            packed=len(lines),
            choices=tuple(theirs),
        )
        for (line, (id, mine, theirs)), share in zip(lines.items(), shares, strict=True)
    ]


def fail(packed: Packed, outcome: Outcome) -> list[Failed]:
    """One record per line that the failed request stood for."""
    assert outcome.failure is not None
    lines: dict[int, tuple[Unit, list[tuple[int, int]]]] = {}
    for part in packed.parts:
        lines.setdefault(part.unit.line, (part.unit, []))[1].extend(part.wanted)
    return [
        Failed(unit.line, unit.id, unit.request, tuple(wanted), outcome.failure, outcome)
        for unit, wanted in lines.values()
    ]


def narrow(packed: Packed, failure: Failure) -> list[tuple[Part, ...]]:
    """The smaller packs to ask instead of one that failed; empty where its failure stands for every part of it.

    A pack refused for good is halved until the culprit stands alone: about ``2 x log2(parts)`` requests each.
    """
    count = len(packed.parts)
    if count == 1 or failure.status in _SAME_FOR_ALL:
        return []
    if failure.permanent and failure.cause not in (Cause.KEY_REFUSED, Cause.CANCELLED, Cause.WORKER_LOST):
        fan = 2
    elif failure.cause in _NARROWED:
        fan = _FAN
    elif failure.cause is Cause.BUDGET:
        fan = 2  # what is left of the budget may do for a smaller one
    else:
        return []
    return list(even_chunks(packed.parts, -(-count // fan)))


def even_chunks(parts: Sequence[Part], most: int) -> Iterator[tuple[Part, ...]]:
    """In as few chunks as ``most`` allows, none more than one longer than another."""
    yield from (tuple(chunk) for chunk in _even(parts, most))


def _missing(unit: Unit, prompts: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    if unit.wanted is None:
        every = tuple(range(unit.request.n))
        yield from ((prompt, every) for prompt in range(prompts))
        return
    by_prompt: dict[int, list[int]] = {}
    for prompt, choice in unit.wanted:
        by_prompt.setdefault(prompt, []).append(choice)
    for prompt in sorted(by_prompt):
        yield prompt, tuple(sorted(set(by_prompt[prompt])))


def _shape(
    request: Request, kind: str, n: int, shift: int, profile: Profile, known: MutableMapping[str, Shape]
) -> Shape:
    fields = {name: value for name, value in request.fields.items() if name not in ("prompt", "messages", "n")}
    if fields.get("model") == profile.model:
        del fields["model"]  # put in again when it is sent
    if shift:
        fields["seed"] = fields["seed"] + shift
    model = str(fields.get("model", profile.model) or "")
    key = f"{request.mode.value}|{request.workload.value}|{model}|{kind}|{n}|{_describe(fields)}"
    if (shape := known.get(key)) is not None:
        return shape
    if len(known) >= _SHAPES:
        known.clear()
    shape = known[key] = Shape(
        key=key,
        fields=fields,
        mode=request.mode,
        workload=request.workload,
        n=n,
        model=model,
        max_tokens=request.max_tokens,
        limit=most_prompts(request, n, profile),
    )
    return shape


def _even(items: Sequence[Any], most: int) -> Iterator[Any]:
    """``items`` in as few slices as ``most`` allows, of sizes that differ by one at most."""
    count = -(-len(items) // most)
    begin = 0
    for place in range(count):
        end = begin + (len(items) - begin) // (count - place)
        yield items[begin:end]
        begin = end
