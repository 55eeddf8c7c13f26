"""``OUT.run.json``: which run an output belongs to, its parameters, and the summary of each execution."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from brimful.errors import UsageError, VersionMismatch
from brimful.runtime.atomic import atomic_write
from brimful.schema import FILES, check_schema
from brimful.words.phrases import cut

_TRIES = 50  # kept
_VALUE_SHOWN = 60  # characters


@dataclass
class Sidecar:
    """The contents of the file, which is written at the start and at the end of each execution."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    run: str
    parameters: dict[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)
    """slots, starts, window_s; for the report."""
    bad_lines: list[Annotated[list[int], Field(min_length=2, max_length=2)]] = field(default_factory=list)
    """``[first, last]`` ranges of lines that made no request, so that correcting them is no change of the input."""
    tries: list[dict[str, Any]] = field(default_factory=list)
    """started, ended (Unix times), and the summary."""

    @classmethod
    def new(cls, parameters: dict[str, Any]) -> Sidecar:
        return cls(secrets.token_hex(8), parameters)

    @classmethod
    def load(cls, path: Path) -> Sidecar | None:
        """None when there is no file. Raises UsageError when it cannot be read, VersionMismatch when it is too new."""
        try:
            raw = json.loads(path.read_text("utf-8"))
            check_schema(str(path), raw.pop("version"), FILES, "use the release that wrote it, or --fresh")
            return TypeAdapter(cls).validate_python(raw)
        except FileNotFoundError:
            return None
        except VersionMismatch:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason: object = error
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise UsageError(
                f"{path}: cannot be read ({reason}); remove it to resume from the output, or use --fresh"
            ) from None

    def store(self, path: Path) -> None:
        """Atomic. Raises FleetError."""
        self.tries = self.tries[-_TRIES:]
        with atomic_write(path) as file:
            file.write(json.dumps({"version": FILES, **asdict(self)}, indent=1).encode() + b"\n")

    def changes(self, parameters: dict[str, Any]) -> list[str]:
        """``NAME was VALUE and is VALUE`` for each parameter that differs now."""
        names = dict.fromkeys([*parameters, *self.parameters])
        return [
            f"{name} was {_show(self.parameters.get(name))} and is {_show(parameters.get(name))}"
            for name in names
            if self.parameters.get(name) != parameters.get(name)
        ]


def _show(value: Any) -> str:
    return cut("not set" if value is None else json.dumps(value), _VALUE_SHOWN)
