"""What a run was asked to do, and which of it must stay the same between tries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from brimful.errors import UsageError
from brimful.names import Mode, Workload
from brimful.packing.units import PackOption
from brimful.profile import Profile
from brimful.run.input.formats import InputFormat
from brimful.run.input.sources import Source


class OutputFormat(StrEnum):
    """``--format``"""

    ROLLOUTS = "rollouts"
    OPENAI_BATCH = "openai-batch"


class Order(StrEnum):
    """``--order``"""

    COMPLETION = "completion"
    INPUT = "input"


@dataclass(frozen=True)
class ReadOptions:
    """How lines become requests; ``defaults`` are the command's fields, which a line's own beat."""

    sources: tuple[Source, ...]
    form: InputFormat = InputFormat.AUTO
    defaults: dict[str, Any] = field(default_factory=dict)
    mode: Mode | None = None
    system: str | None = None
    workload: Workload = Workload.BATCH
    limit: int | None = None
    """Requests at most."""

    @property
    def repeatable(self) -> bool:
        """All of it can be read twice: it is looked through before anything is sampled."""
        return all(source.regular for source in self.sources)

    def to_blame(self, message: str) -> bool:
        """Whether a bad line's fault (``FIELD: …``) is one of these settings, not of the line alone."""
        name = message.partition(":")[0]
        if name == "model":
            return "model" in self.defaults or "--model" in message
        return name in self.defaults or (name == "system" and self.system is not None)

    def check(self) -> None:
        """Raises UsageError for an input that cannot be one."""
        if not self.sources:
            raise UsageError("no input: name a file, or - for standard input")
        seen = set()
        for source in self.sources:
            if source.path in seen:
                raise UsageError(f"{source.name}: is named twice; its lines would have the same ids")
            seen.add(source.path)
            source.check(forced=self.form is not InputFormat.AUTO)


@dataclass(frozen=True)
class RunOptions:
    """``brimful run``, parsed."""

    read: ReadOptions
    output: str
    form: OutputFormat = OutputFormat.ROLLOUTS
    order: Order = Order.COMPLETION
    pack: PackOption = "auto"
    strict: bool = False
    retry_errors: bool = False
    fresh: bool = False
    budget_tokens: int | None = None
    workers: int | None = None
    rehearse: bool = False

    @property
    def to_stdout(self) -> bool:
        return self.output == "-"

    def parameters(self, profile: Profile) -> dict[str, Any]:
        """What decides the texts and the shape of the output: it may not change between tries. JSON-ready."""
        return {
            "provider": profile.name,
            "rehearse": self.rehearse,
            "input-format": self.read.form.value,
            "mode": self.read.mode.value if self.read.mode else None,
            "model": self.read.defaults.get("model", profile.model),
            "system": self.read.system,
            **{name: value for name, value in sorted(self.read.defaults.items()) if name != "model"},
        }


def parse_parameters(given: list[str]) -> dict[str, Any]:
    """``--param top_p=0.9``: the value is JSON, or else a string. Raises UsageError."""
    fields: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--param {pair}: must be NAME=VALUE, for instance --param top_p=0.9")
        try:
            fields[name.strip()] = json.loads(text)
        except ValueError:
            fields[name.strip()] = text
    return fields


_Kind = TypeVar("_Kind", bound=StrEnum)


def parse_choice(kind: type[_Kind], flag: str, value: str) -> _Kind:
    """Raises UsageError naming what may be said."""
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{flag}: {value!r} is none of {', '.join(kind)}") from None
