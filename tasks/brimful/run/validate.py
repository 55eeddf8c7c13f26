"""``brimful validate``: what a run would ask for, how it packs, which limit binds, and how long it takes at best."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from brimful.errors import RequestTooLarge
from brimful.names import Workload
from brimful.packing.packing import slices_of
from brimful.packing.request_size import most_choices
from brimful.packing.token_ratio import PromptSize, TokenRatio
from brimful.packing.units import PackOption, Unit
from brimful.profile import Profile, Tokens
from brimful.run.display.summary import duration, money
from brimful.run.input.reader import Entry, ReadOptions
from brimful.run.input.survey import survey
from brimful.run.input.sweep.sweep import overridden_notes
from brimful.words.counted import counted

_ASSUMED_S = 1.0
_SHOWN = 10
_PROMPT_SHOWN = 2000  # characters
_ITEMS_SHOWN = 20
_SENT = 100  # names of fields that are kept


@dataclass
class Validation:
    """The object that ``--json`` prints. Times are in seconds and the best possible: no failures, no idle slot."""

    lines: int = 0
    requests: int = 0
    combinations: int = 1
    """With which each line is sampled (``--sweep``)."""
    bad: int = 0
    rollouts: int = 0
    tokens_at_most: int | None = 0
    """Sampled tokens; None if a line leaves ``max_tokens`` to the provider."""
    cost_at_most: float | None = 0.0
    """By the profile's prices, with estimated prompts; None if a price or a ``max_tokens`` is missing."""
    split: int = 0
    """Lines too large for one request."""
    models: dict[str, int] = field(default_factory=dict)
    """Requests by model."""
    shapes: int = 0
    """Different pack keys: only lines of one pack key can share a request."""
    calls_off: int = 0
    """Requests to the provider with ``--pack off``."""
    calls_packed: int = 0
    """The fewest requests possible, packed as full as the limits allow."""
    prompts_per_call: int = 1
    """Prompts in the largest packed request."""
    slots: int = 1
    """The limit as set, or the profile's, which is assumed with ``slots_auto``."""
    slots_auto: bool = False
    """How many slots the key has is learnt while requests are sampled (``BRIMFUL_SLOTS=auto``)."""
    starts: int | None = None
    window_s: float = 60.0
    latency_s: float = _ASSUMED_S
    """Of one request; assumed if not given."""
    binds: str = ""
    """``starts bind`` or ``slots bind``, with ``--pack off`` and that latency."""
    turning_s: float | None = None
    """The latency above which slots bind instead of starts."""
    seconds_off: float = 0.0
    seconds_packed: float = 0.0
    first: dict[str, Any] | None = None
    """The first request's body."""
    faults: list[str] = field(default_factory=list)
    """The first bad lines; a fault of the command's own settings is listed once."""
    unknown_fields: list[dict[str, Any]] = field(default_factory=list)
    """Sent: name, lines, varies (its lines cannot share a request), likely (the known field probably meant)."""
    sent: list[str] = field(default_factory=list)
    """The fields of the requests."""
    columns: list[dict[str, Any]] = field(default_factory=list)
    """Carried through, not sent: name, lines, likely."""
    notes: list[str] = field(default_factory=list)
    """The files, the unknown fields and the columns in words."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The table for people: label and value."""
        unbound = "without a bound, since some lines set no max_tokens (--max-tokens)"
        at_most = unbound if self.tokens_at_most is None else f"at most {self.tokens_at_most:,} sampled"
        each = f"up to {self.prompts_per_call:,} prompts" if self.prompts_per_call > 1 else "one prompt"
        kinds = f" ({self.shapes:,} kinds, which do not mix)" if self.shapes > 1 else ""
        packed = f"at least {counted(self.calls_packed, 'API call')} of {each} each{kinds}"
        rows = [
            ("input", f"{counted(self.lines, 'line')}, {counted(self.requests, 'prompt')}, {self.bad:,} bad"),
            ("sent", ", ".join(self.sent[:_ITEMS_SHOWN])),
            ("carried", ", ".join(column["name"] for column in self.columns[:_ITEMS_SHOWN]) or "–"),
            ("rollouts", f"{self.rollouts:,}"),
            ("tokens", at_most),
            *([] if not self.cost_at_most else [("cost", f"at most {money(self.cost_at_most)}")]),
            ("models", ", ".join(f"{name} {count:,}" for name, count in sorted(self.models.items())) or "–"),
            ("pack off", f"{counted(self.calls_off, 'API call')}, {duration(self.seconds_off)} at best"),
            ("packed", f"{packed}, {duration(self.seconds_packed)} at best"),
            ("limits", self._limits()),
        ]
        if self.combinations > 1:
            rows.insert(1, ("sweep", f"{self.combinations:,} combinations of each line"))
        if self.split:
            rows.insert(4, ("split", f"{counted(self.split, 'line')}, too large for one API call each"))
        return rows

    def _limits(self) -> str:
        slots = counted(self.slots, "slot")
        if self.slots_auto:
            slots += " assumed (auto: the workers learn how many the key has)"
        if self.starts is None:
            return f"{slots}, no limit of starts: slots bind"
        return (
            f"{slots}, {counted(self.starts, 'start')} in {self.window_s:g} s; "
            f"in long runs starts bind while an API call takes less than {self.turning_s:.2g} s, slots beyond "
            f"(in this one, assuming {self.latency_s:g} s: {self.binds})"
        )


def validate(
    options: ReadOptions,
    profile: Profile,
    *,
    pack: PackOption = "auto",
    latency_s: float | None = None,
    strict: bool = False,
    slots_auto: bool = False,
) -> Validation:
    """Read the whole input. Raises InputError if nothing of it could be sampled, or at a bad line if ``strict``."""
    options.check()
    found = Validation(latency_s=latency_s or _ASSUMED_S, slots_auto=slots_auto)
    slices: Counter[str] = Counter()
    limits: dict[str, int] = {}
    ratio = TokenRatio()
    sent: set[str] = set()

    def note(entry: Entry) -> None:
        if not isinstance(entry.item, Unit):
            return
        request, cut = entry.item.request, 0
        body = request.body(profile)
        found.first = found.first or body
        if len(sent) < _SENT:
            sent.update(body)
        model = str(body.get("model"))
        found.models[model] = found.models.get(model, 0) + 1
        if request.max_tokens is None or found.tokens_at_most is None:
            found.tokens_at_most = None
        else:
            found.tokens_at_most += request.choices * request.max_tokens
        price = profile.price(model)
        if price is None or request.max_tokens is None or found.cost_at_most is None:
            found.cost_at_most = None
        else:
            calls = -(-request.n // most_choices(request, profile))  # each of them pays for the prompts
            tokens = Tokens(prompt=calls * ratio.likely(PromptSize.of(request.prompts)), completion=request.asked)
            found.cost_at_most += price.cost(tokens, batch=request.workload is Workload.BATCH)
        for key, _ in slices_of(entry.item, profile):
            cut += 1
            slices[key.key] += 1
            limits[key.key] = 1 if pack == "off" else min(key.limit, pack) if isinstance(pack, int) else key.limit
        try:
            request.check(profile)
            found.calls_off += 1
        except RequestTooLarge:
            found.split += 1
            found.calls_off += cut

    read = survey(options, profile, strict=strict, note=note)
    read.check(strict)
    found.combinations = len(options.sweep)
    found.lines, found.requests, found.bad, found.rollouts = read.lines, read.requests, read.bad, read.rollouts
    found.faults = [str(fault) for fault in read.faults[:_SHOWN]]
    found.unknown_fields = [field.as_json() for field in read.unknown]
    found.sent = sorted(sent, key=lambda name: (name not in ("prompt", "messages"), name))
    found.columns = read.carried.as_json(profile)
    found.notes = [
        *read.notes,
        *read.unknown.notes(_SHOWN),
        *read.carried.notes(profile),
        *overridden_notes(read.overridden),
    ]
    found.shapes = len(slices)
    found.calls_packed = sum(math.ceil(count / limits[key]) for key, count in slices.items())
    found.prompts_per_call = max((min(count, limits[key]) for key, count in slices.items()), default=1)
    _estimate(found, profile)
    return found


def _estimate(found: Validation, profile: Profile) -> None:
    """Which limit binds, and the shortest times."""
    found.slots, found.starts, found.window_s = profile.slots, profile.starts, profile.window_s
    by_starts = _last_start_s(found.calls_off, profile)
    by_slots = math.ceil(found.calls_off / profile.slots) * found.latency_s
    found.binds = "starts bind" if by_starts > by_slots else "slots bind"
    if profile.starts is not None:
        found.turning_s = profile.slots * profile.window_s / profile.starts
    found.seconds_off = max(by_starts + found.latency_s, by_slots)
    packed_by_slots = math.ceil(found.calls_packed / profile.slots) * found.latency_s
    found.seconds_packed = max(_last_start_s(found.calls_packed, profile) + found.latency_s, packed_by_slots)


def _last_start_s(requests: int, profile: Profile) -> float:
    """When the last request can start: a window's worth starts at once, the next ones a window later."""
    if profile.starts is None or not requests:
        return 0.0
    return (requests - 1) // profile.starts * profile.window_s


def shown_body(body: dict[str, Any]) -> str:
    """Indented JSON; long texts and lists are cut."""

    def cut(value: Any) -> Any:
        if isinstance(value, str) and len(value) > _PROMPT_SHOWN:
            return f"{value[:_PROMPT_SHOWN]}… ({counted(len(value), 'character')})"
        if isinstance(value, list):
            more = [f"… {len(value):,} in all"] if len(value) > _ITEMS_SHOWN else []
            return [cut(item) for item in value[:_ITEMS_SHOWN]] + more
        return {name: cut(item) for name, item in value.items()} if isinstance(value, dict) else value

    text = json.dumps(cut(body), ensure_ascii=False, indent=2)
    return text.encode("utf-8", "backslashreplace").decode()
