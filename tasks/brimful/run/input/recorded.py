"""How a run read its input, as its sidecar records it, so that a report finds the prompts again."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from brimful.run.input.files.unpack import STDIN
from brimful.run.input.reader import ReadOptions
from brimful.run.input.sources import Source


def as_record(options: ReadOptions) -> dict[str, Any]:
    """JSON-ready, with absolute paths; empty where there is no form for it."""
    sources = tuple(Source(_absolute(source.path)) for source in options.sources)
    with contextlib.suppress(PydanticSerializationError):
        record: dict[str, Any] = _options().dump_python(replace(options, sources=sources), mode="json")
        return record
    return {}


def from_record(record: Any, sources: tuple[Source, ...] | None = None) -> ReadOptions | None:
    """None for a record of another release. ``sources`` are read in place of the recorded ones."""
    try:
        options: ReadOptions = _options().validate_python(record)
    except ValidationError:
        return None
    return options if sources is None else replace(options, sources=sources)


def _options() -> TypeAdapter[ReadOptions]:
    return TypeAdapter(ReadOptions)


def _absolute(path: str) -> str:
    return path if path == STDIN else str(Path(path).absolute())
