"""``brimful validate``: what a run would ask, how it packs, which limit binds, and how long it takes at best."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from brimful.errors import RequestTooLarge
from brimful.packing.packing import slices_of
from brimful.packing.units import PackOption, Unit
from brimful.profile import Profile
from brimful.run.display.summary import duration
from brimful.run.input.reader import Entry, ReadOptions
from brimful.run.input.survey import Survey, survey

_ASSUMED_S = 1.0
_SHOWN = 10
_PROMPT_SHOWN = 2000


@dataclass
class Validation:
    """``--json`` prints it. Times are seconds, at best: no failures, every slot and start used."""

    lines: int = 0
    requests: int = 0
    bad: int = 0
    rollouts: int = 0
    tokens_at_most: int | None = 0
    """Sampled tokens; None where a line leaves ``max_tokens`` to the provider."""
    split: int = 0
    """Lines too large for one request."""
    models: dict[str, int] = field(default_factory=dict)
    """Requests by model."""
    shapes: int = 0
    """Kinds of requests; only those of one kind can share a request."""
    calls_off: int = 0
    """Requests to the provider with ``--pack off``."""
    calls_packed: int = 0
    """At least so many, packed as full as the limits allow."""
    prompts_per_call: int = 1
    """At most, in the largest packed request."""
    slots: int = 1
    starts: int | None = None
    window_s: float = 60.0
    latency_s: float = _ASSUMED_S
    """Of one request; assumed where none was stated."""
    binds: str = ""
    """``starts``, ``slots`` or ``nothing``, with ``--pack off`` and that latency."""
    turning_s: float | None = None
    """Latency from which on slots bind, and not starts."""
    seconds_off: float = 0.0
    seconds_packed: float = 0.0
    first: dict[str, Any] | None = None
    """The first request's body."""
    faults: list[str] = field(default_factory=list)
    """The first bad lines; what is the fault of the command's settings but once."""
    unknown_fields: list[dict[str, Any]] = field(default_factory=list)
    """name, lines, varies (so that they do not pack), likely (the known field that it nearly is)."""
    notes: list[str] = field(default_factory=list)
    """The same in words."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """For people."""
        unbound = "without a bound, since some lines set no max_tokens (--max-tokens)"
        at_most = unbound if self.tokens_at_most is None else f"at most {self.tokens_at_most:,} sampled"
        each = f"up to {self.prompts_per_call:,} prompts" if self.prompts_per_call > 1 else "one prompt"
        kinds = f" ({self.shapes:,} kinds, which do not mix)" if self.shapes > 1 else ""
        rows = [
            ("input", f"{self.lines:,} lines, {self.requests:,} requests, {self.bad:,} bad"),
            ("rollouts", f"{self.rollouts:,}"),
            ("tokens", at_most),
            ("models", ", ".join(f"{name} {count:,}" for name, count in sorted(self.models.items())) or "–"),
            ("pack off", f"{_requests(self.calls_off)}, {duration(self.seconds_off)} at best"),
            (
                "packed",
                f"at least {_requests(self.calls_packed)} of {each} each{kinds}, "
                f"{duration(self.seconds_packed)} at best",
            ),
            ("limits", self._limits()),
        ]
        if self.split:
            rows.insert(2, ("split", f"{self.split:,} lines, too large for one request each"))
        return rows

    def _limits(self) -> str:
        if self.starts is None:
            return f"{self.slots:,} slots, no limit of starts: slots bind"
        return (
            f"{self.slots:,} slots, {self.starts:,} starts in {self.window_s:g} s; "
            f"starts bind while a request takes less than {self.turning_s:.2g} s, slots beyond "
            f"(reckoned with {self.latency_s:g} s: {self.binds})"
        )


class _Shapes:
    """Parts by the kind of request that they can share: a count each."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self.limits: dict[str, int] = {}

    def calls(self) -> int:
        return sum(math.ceil(count / self.limits[key]) for key, count in self.parts.items())

    def fullest(self) -> int:
        return max((min(count, self.limits[key]) for key, count in self.parts.items()), default=1)


def validate(
    options: ReadOptions,
    profile: Profile,
    *,
    pack: PackOption = "auto",
    latency_s: float | None = None,
    strict: bool = False,
) -> Validation:
    """Read all of the input. Raises InputError where nothing of it could be sampled (or, strict, at a fault)."""
    options.check()
    found = Validation(latency_s=latency_s or _ASSUMED_S)
    shapes = _Shapes()

    def note(entry: Entry) -> None:
        if isinstance(entry.item, Unit):
            _add(found, shapes, entry.item, profile, pack)

    looked = survey(options, profile, strict=strict, note=note)
    looked.check(strict)
    found.faults = [str(fault) for fault in looked.faults[:_SHOWN]]
    found.unknown_fields = [field.as_json() for field in looked.unknown]
    found.notes = looked.unknown.notes(_SHOWN)
    _reckon(found, shapes, looked, profile)
    return found


def _add(found: Validation, shapes: _Shapes, unit: Unit, profile: Profile, pack: PackOption) -> None:
    request = unit.request
    if found.first is None:
        found.first = request.body(profile)
    model = str(request.body(profile).get("model"))
    found.models[model] = found.models.get(model, 0) + 1
    if request.max_tokens is None:
        found.tokens_at_most = None
    elif found.tokens_at_most is not None:
        found.tokens_at_most += request.choices * request.max_tokens
    parts = 0
    for shape, _ in slices_of(unit, profile):
        parts += 1
        shapes.parts[shape.key] = shapes.parts.get(shape.key, 0) + 1
        shapes.limits[shape.key] = (
            1 if pack == "off" else min(shape.limit, pack if isinstance(pack, int) else shape.limit)
        )
    whole = _fits(unit, profile)
    found.split += not whole
    found.calls_off += 1 if whole else parts


def _requests(count: int) -> str:
    return f"{count:,} request{'s' if count != 1 else ''}"


def _fits(unit: Unit, profile: Profile) -> bool:
    try:
        unit.request.check(profile)
    except RequestTooLarge:
        return False
    return True


def _reckon(found: Validation, shapes: _Shapes, looked: Survey, profile: Profile) -> None:
    found.lines, found.requests, found.bad = looked.lines, looked.requests, looked.bad
    found.rollouts, found.shapes = looked.rollouts, len(shapes.parts)
    found.calls_packed, found.prompts_per_call = shapes.calls(), shapes.fullest()
    found.slots, found.starts, found.window_s = profile.slots, profile.starts, profile.window_s
    by_starts = _starts_s(found.calls_off, profile)
    by_slots = found.calls_off / profile.slots * found.latency_s
    found.binds = "starts bind" if by_starts > by_slots else "slots bind"
    if profile.starts is not None:
        found.turning_s = profile.slots * profile.window_s / profile.starts
    found.seconds_off = max(by_starts + found.latency_s, by_slots)
    packed_slots = math.ceil(found.calls_packed / profile.slots) * found.latency_s
    found.seconds_packed = max(_starts_s(found.calls_packed, profile) + found.latency_s, packed_slots)


def _starts_s(calls: int, profile: Profile) -> float:
    """When the last of so many calls can start: a window's worth at once, then a window later the next."""
    if profile.starts is None or not calls:
        return 0.0
    return (calls - 1) // profile.starts * profile.window_s


def shown_body(body: dict[str, Any]) -> str:
    """JSON, long texts cut."""

    def cut(value: Any) -> Any:
        if isinstance(value, str) and len(value) > _PROMPT_SHOWN:
            return f"{value[:_PROMPT_SHOWN]}… ({len(value):,} characters)"
        if isinstance(value, list):
            return [cut(item) for item in value[:20]] + ([f"… {len(value):,} in all"] if len(value) > 20 else [])
        if isinstance(value, dict):
            return {name: cut(item) for name, item in value.items()}
        return value

    text = json.dumps(cut(body), ensure_ascii=False, indent=2)
    return text.encode("utf-8", "backslashreplace").decode()
