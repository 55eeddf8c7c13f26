"""Packs the prompts of many lines into one request. Pure: no clock, no I/O.

A line is cut into *slices*: one prompt with some of its choices. Slices with the same *pack key* (model and every other
field but the prompt, number of choices, strings or token lists) may share a request, within the profile's bounds
(:mod:`brimful.packing.request_size`). A line too large for one request is split by prompts first, then by choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from brimful.names import Mode, Workload
from brimful.outcome import Cause, Failure
from brimful.packing.latency import UNKNOWN_TOKENS
from brimful.packing.request_size import MAX_PACK_BYTES, check_line, most_choices, most_prompts, prompt_bytes
from brimful.packing.units import Manifest, ManifestEntry, Unit
from brimful.profile import Profile
from brimful.request import Request

_Item = TypeVar("_Item")

_PACK_KEYS = 4096
"""Pack keys that are remembered."""
_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
SCALARS = frozenset({str, int, float, bool})
"""Types of fields whose values are compared as they are."""
_NOT_THE_PROMPT = frozenset({404, 405, 406, 415})
"""Statuses that no prompt causes (no such model, no such endpoint): splitting the request would not help."""
_SPLIT_ON = frozenset({Cause.TIMEOUT, Cause.SERVER_ERROR, Cause.BAD_ANSWER, Cause.JOB_FAILED})
"""Transient failures that one prompt, or too large a request, may cause every time."""
_TRANSIENT_SPLIT = 8
"""Requests that replace one after such a failure. Each costs a full set of attempts, so more requests, fewer levels."""


@dataclass(frozen=True, slots=True)
class PackKey:
    """What the slices of one request have in common."""

    key: str
    """Equal for equal pack keys."""
    fields: Mapping[str, Any]
    """The provider's fields, without ``prompt``, ``messages`` and ``n``."""
    mode: Mode
    workload: Workload
    n: int
    """Choices of each slice."""
    model: str
    max_tokens: int | None
    limit: int
    """Slices that one request may carry; 1 = they are not packed."""
    suspect: bool = False
    """Workers died while they sampled a request with these slices; not part of ``key``."""

    @property
    def target(self) -> tuple[Mode, str]:
        """Endpoint and model: what a provider may refuse whatever the prompt is."""
        return self.mode, self.model

    @property
    def tokens_per_prompt(self) -> int:
        """The most that one prompt's choices may have."""
        return self.n * (self.max_tokens or UNKNOWN_TOKENS)


@dataclass(slots=True)
class Slice:
    """One prompt of a line with the choices wanted of it."""

    unit: Unit
    prompt_index: int
    choices: tuple[int, ...]
    """Choice indexes of the line; as many as the pack key's ``n``."""
    prompt: Any
    """A string, a ``list[int]``, or the chat's messages."""
    size: int
    """Approximate bytes in a request body."""
    columns_bytes: int = 0
    """Its share of the unit's."""

    @property
    def held_bytes(self) -> int:
        """What it takes in memory, about, with the columns of its line."""
        return self.size + self.columns_bytes

    @property
    def manifest_entry(self) -> ManifestEntry:
        return ManifestEntry(self.unit.line, self.unit.id, self.prompt_index, self.choices)

    @property
    def wanted(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.prompt_index, choice) for choice in self.choices)


KeyParts = tuple[str | int, ...]
"""The values by which pack keys differ."""
Pack = tuple[Slice, ...]
"""The slices of one request, in their order."""


@dataclass(slots=True)
class PackedRequest:
    """One request to the provider, and the slices that it carries."""

    id: str
    pack_key: PackKey
    slices: Pack

    manifest: Manifest = field(init=False, compare=False)
    size: int = field(init=False, compare=False)
    """Approximate bytes of its prompts."""
    held_bytes: int = field(init=False, compare=False)
    """What it takes in memory, about."""

    def __post_init__(self) -> None:
        # Not cached properties: before Python 3.12 those take a lock, for each request of a run.
        size = columns = 0
        for item in self.slices:
            size += item.size
            columns += item.columns_bytes
        self.manifest = tuple([item.manifest_entry for item in self.slices])
        self.size, self.held_bytes = size, size + columns

    @property
    def choices(self) -> int:
        return len(self.slices) * self.pack_key.n

    @property
    def lines(self) -> int:
        slices = self.slices
        return 1 if len(slices) == 1 else len({item.unit.line for item in slices})

    @property
    def fields(self) -> dict[str, Any]:
        """The provider's fields as they are sent."""
        fields = dict(self.pack_key.fields)
        if self.pack_key.mode is Mode.CHAT:
            fields["messages"] = self.slices[0].prompt
        elif len(self.slices) == 1:
            fields["prompt"] = self.slices[0].prompt
        else:
            fields["prompt"] = [item.prompt for item in self.slices]
        if self.pack_key.n > 1:
            fields["n"] = self.pack_key.n
        return fields

    @property
    def request(self) -> Request:
        """The request as it is sent."""
        return Request(self.fields, self.id, self.pack_key.mode, self.pack_key.workload)

    def message(self, workload: str) -> dict[str, Any]:
        """As :meth:`Request.as_message` gives it, for the queue of that workload."""
        return {**self.fields, "id": self.id, "mode": self.pack_key.mode.value, "workload": workload}


def slices_of(
    unit: Unit, profile: Profile, known: MutableMapping[KeyParts, PackKey] | None = None
) -> Iterator[tuple[PackKey, Slice]]:
    """The unit's wanted rollouts, each in exactly one slice. Raises RequestTooLarge as ``check_line`` does.

    ``known``: a cache of pack keys made under the same profile; equal pack keys are then one object.
    """
    known = {} if known is None else known
    request = unit.request
    check_line(request, profile)
    fields = {name: value for name, value in request.fields.items() if name not in ("prompt", "messages", "n")}
    if fields.get("model") == profile.model:
        del fields["model"]  # Request.body puts it in again
    model = str(fields.get("model", profile.model) or "")
    common = (request.mode, request.workload, model, _describe(fields))
    prompts, most = request.prompts, most_choices(request, profile)
    columns = unit.columns_bytes // len(prompts)
    for prompt_index, missing in _missing(unit, len(prompts)):
        prompt = prompts[prompt_index]
        kind = "text" if isinstance(prompt, str) else "ids"
        for choices in split_evenly(missing, most) if len(missing) > 1 else (missing,):
            # Equal seeds give equal texts, so a request that begins at choice 50 uses the seed plus 50.
            shift = choices[0] if isinstance(fields.get("seed"), int) else 0
            key = (*common, kind, len(choices), shift)
            if (pack_key := known.get(key)) is None:
                if len(known) >= _PACK_KEYS:
                    known.clear()
                pack_key = known[key] = PackKey(
                    key="|".join(map(str, key)),
                    fields={**fields, "seed": fields["seed"] + shift} if shift else fields,
                    mode=request.mode,
                    workload=request.workload,
                    n=len(choices),
                    model=model,
                    max_tokens=request.max_tokens,
                    limit=most_prompts(request, len(choices), profile),
                )
            yield pack_key, Slice(unit, prompt_index, choices, prompt, prompt_bytes(prompt), columns)


def fill_requests(slices: Iterable[Slice], limit: int) -> Iterator[Pack]:
    """Slices of one pack key, divided into requests of at most ``limit`` slices and MAX_PACK_BYTES."""
    held: list[Slice] = []
    size = 0
    for item in slices:
        if held and (len(held) >= limit or size + item.size > MAX_PACK_BYTES):
            yield tuple(held)
            held, size = [], 0
        held.append(item)
        size += item.size
    if held:
        yield tuple(held)


def split_failed(packed: PackedRequest, failure: Failure) -> list[Pack]:
    """The smaller requests to send instead of one that failed; empty where all slices failed for good.

    A permanent failure, or the death of workers, halves the request until the culprit is alone: about
    ``2 x log2(slices)`` requests for each.
    """
    count = len(packed.slices)
    if count == 1 or failure.status in _NOT_THE_PROMPT:
        return []
    # Of a budget that is used up, the rest may be enough for a smaller request.
    lasting = failure.permanent and failure.cause not in (Cause.KEY_REFUSED, Cause.CANCELLED)
    if lasting or failure.cause in (Cause.BUDGET, Cause.WORKER_LOST):
        return list(split_evenly(packed.slices, -(-count // 2)))
    if failure.cause in _SPLIT_ON:
        return list(split_evenly(packed.slices, -(-count // _TRANSIENT_SPLIT)))
    return []


def split_evenly(items: tuple[_Item, ...], most: int) -> Iterator[tuple[_Item, ...]]:
    """As few tuples as ``most`` items in each allow, of lengths that differ by one at most."""
    count = -(-len(items) // most)
    begin = 0
    for place in range(count):
        end = begin + (len(items) - begin) // (count - place)
        yield items[begin:end]
        begin = end


def _describe(fields: Mapping[str, Any]) -> str:
    """The same text for the same fields, in whatever order. The JSON encoder is slower, but sorts nested names too."""
    if SCALARS.issuperset(map(type, fields.values())):
        return repr(sorted(fields.items()))
    return _to_json(fields)


def _missing(unit: Unit, prompts: int) -> list[tuple[int, tuple[int, ...]]]:
    """``(prompt_index, choice_indexes)`` of the rollouts still wanted."""
    if unit.wanted is None:
        every = tuple(range(unit.request.n))
        return [(prompt, every) for prompt in range(prompts)]
    by_prompt: dict[int, set[int]] = {}
    for prompt, choice in unit.wanted:
        by_prompt.setdefault(prompt, set()).add(choice)
    return [(prompt, tuple(sorted(by_prompt[prompt]))) for prompt in sorted(by_prompt)]
