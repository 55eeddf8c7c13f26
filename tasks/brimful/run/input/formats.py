"""Parsers of one input line: a JSONL request, an OpenAI Batch line, a bare provider body, or plain text.

Each returns what the line holds, or raises InputError with the fault and its remedy. The reader puts
``FILE:LINE:`` before it. Which kind of file the line comes from is known in ``input.files``.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from brimful.errors import InputError
from brimful.fields import likely
from brimful.names import Mode
from brimful.nesting import MOST_WHOLE, too_deep, unsendable
from brimful.run.input.files.columns import listed, no_column
from brimful.words.values import kind_of, shown

_PROMPTS = ("prompt", "messages")
_LIKELY_PROMPTS = ("text", "input", "question", "instruction", "query", "content", "user", "message")
_URLS = {"/completions": Mode.COMPLETION, "/chat/completions": Mode.CHAT, "/completion-jobs": Mode.JOB}
_BATCH_FIELDS = ("method", "url", "body")
_ID_LENGTH = 512
_DEEP = 500  # levels; more of them could be read, but not always be written again
_NAMES_CHECKED = 32  # of a line without a prompt, for misspellings


class Parsed(NamedTuple):
    """One line."""

    fields: dict[str, Any]
    """Its fields in order, without the id; of an OpenAI Batch line, what stands beside its request."""
    id: str | int | float | None = None
    """None: it states no id."""
    body: dict[str, Any] | None = None
    """Of an OpenAI Batch line: the fields of its request."""
    line: Mapping[str, Any] = {}
    """All of it, where ``columns`` are named."""
    columns: frozenset[str] = frozenset()
    """Members of ``line`` that are columns whatever their names are."""


@dataclass(frozen=True)
class ColumnNames:
    """Which fields of a line hold what a request needs; None: those of the usual names."""

    prompt: str | None = None
    """``--prompt-column``: a prompt, a list of prompts, or a chat's messages."""
    id: str | None = None
    """``--id-column``"""
    own_id: bool = True
    """A field ``id`` is the id; False where it is a column."""

    @cached_property
    def named(self) -> tuple[str, ...]:
        return tuple(name for name in (self.prompt, self.id) if name is not None)

    def apply(self, line: dict[str, Any]) -> Parsed:
        """A line whose prompt and id are in these fields. Raises InputError where it lacks one of them."""
        for name in self.named:
            if name not in line:
                raise InputError(no_column(name, list(line)) + (f"; {way}" if (way := _not_rows(line)) else ""))
        id_name = self.id or ("id" if self.own_id else None)
        id = None if id_name is None or line.get(id_name) is None else _id(line[id_name], id_name)
        if not self.named:
            return Parsed({name: value for name, value in line.items() if name != id_name}, id)
        taken = {"id", *(() if self.prompt is None else (*_PROMPTS, self.prompt))}
        if id_name is not None and id_name not in _PROMPTS:
            taken.add(id_name)
        fields = {name: value for name, value in line.items() if name not in taken}
        if self.prompt is not None:
            value = line[self.prompt]
            if value is None:
                raise InputError(f"{self.prompt}: is empty; a prompt is text, a list of texts or a chat's messages")
            if isinstance(value, dict):
                raise InputError(
                    _not_rows(line) or f"{self.prompt}: is an object; a prompt is text, or a chat's messages"
                )
            fields["messages" if _is_chat(value) else "prompt"] = value
        usual = {name for name in ("id", *_PROMPTS) if name in (id_name, self.prompt)}
        return Parsed(fields, id, line=line, columns=frozenset(taken - usual))


class InputFormat(StrEnum):
    """``--input-format``"""

    AUTO = "auto"
    JSONL = "jsonl"
    """Objects with a prompt or messages, OpenAI Batch lines or provider bodies, detected line by line."""
    JSON = "json"
    """The same as elements of an array, or written over several lines each."""
    TEXT = "text"
    """One prompt per line."""
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow's file format, which Feather is too, and its stream format."""


def parse_text(data: bytes) -> Parsed:
    """The whole line is the prompt."""
    return Parsed({"prompt": _decode(data)})


def parse_row(data: bytes, names: ColumnNames = ColumnNames()) -> Parsed:
    """A JSON object of columns, from which templates make the request: it needs no prompt, and is no Batch line."""
    return names.apply(_object(data))


def parse_json(data: bytes, names: ColumnNames = ColumnNames()) -> Parsed:
    """A JSON object. ``body`` holds ``mode`` where a Batch line's url states it."""
    line = _object(data)
    if _is_batch(line, names):
        id_name = "custom_id" if "custom_id" in line else "id"
        body = _batch_body(line)
        id = _id(line[id_name], id_name) if line.get(id_name) is not None else None
        beside = {id_name, *_BATCH_FIELDS}
        parsed = Parsed({name: value for name, value in line.items() if name not in beside}, id, body)
    else:
        parsed = names.apply(line)
    asked = parsed.fields if parsed.body is None else parsed.body
    if asked.get("prompt") is None and asked.get("messages") is None:
        raise InputError(_no_prompt(line))
    return parsed


def _object(data: bytes) -> dict[str, Any]:
    text = _decode(data)
    try:
        line = _DECODER.decode(text)
    except RecursionError:
        raise InputError("is nested too deeply to parse; flatten it") from None
    except json.JSONDecodeError as error:
        raise InputError(_not_json(text, error)) from None
    except ValueError as error:
        raise InputError(_odd_number(text) or f"is not JSON: {error}") from None
    if data.count(b"[") + data.count(b"{") > _DEEP and too_deep(line, _DEEP):
        raise InputError("is nested too deeply to parse; flatten it")
    if not isinstance(line, dict):
        kind = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(
            type(line), "a number"
        )
        raise InputError(f'is {kind}; each line must be an object: {{"prompt": …}}')
    return line


def stated_id(data: bytes, names: ColumnNames = ColumnNames()) -> str | int | float | None:
    """The id that a line of JSON states, though it makes no request; None without one that can be used."""
    try:
        line = _DECODER.decode(_decode(data))
        own = ("id",) if names.own_id else ()
        usual = ("custom_id", *own) if _is_batch(line, names) else (*own, "custom_id")
        wanted = usual if names.id is None else (names.id,)
        return next((_id(line[name], name) for name in wanted if line.get(name) is not None), None)
    except (ValueError, RecursionError, AttributeError, TypeError, InputError):
        return None


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _is_batch(line: dict[str, Any], names: ColumnNames) -> bool:
    """Whether it is one of OpenAI's Batch API, though perhaps without the body that it needs; a table may have a column
    ``body`` as well."""
    if "prompt" in line or "messages" in line or any(name in line for name in names.named):
        return False
    if "body" not in line:
        return "custom_id" in line and "url" in line
    return isinstance(line["body"], dict) or not line.keys().isdisjoint(("custom_id", "method", "url"))


def _batch_body(line: dict[str, Any]) -> dict[str, Any]:
    """The request of ``{"custom_id", "method", "url", "body"}``, a line of OpenAI's Batch API."""
    if "body" not in line:
        raise InputError("body: missing; a line of OpenAI's Batch API needs one, with the endpoint's request fields")
    body = line["body"]
    if not isinstance(body, dict):
        raise InputError(f"body: must be an object with the endpoint's request fields, not {kind_of(body)}")
    if (method := line.get("method", "POST")) != "POST":
        raise InputError(f"method: must be POST, not {shown(method)}")
    if (url := line.get("url")) is None:
        return body
    known = [mode for end, mode in _URLS.items() if isinstance(url, str) and url.rstrip("/") in (end, "/v1" + end)]
    if not known:
        raise InputError(f"url: must be one of {', '.join('/v1' + end for end in _URLS)}, not {shown(url)}")
    return {**body, "mode": known[0].value}


def _id(value: Any, name: str) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError(f"{name}: must be a string or a number, not {shown(value)}")
    text = str(value)
    if not text or len(text) > _ID_LENGTH:
        raise InputError(f"{name}: must have 1 to {_ID_LENGTH} characters, not {len(text):,}")
    return value


def _no_prompt(line: dict[str, Any]) -> str:
    fields = line["body"] if isinstance(line.get("body"), dict) else line
    if (null := next((name for name in _PROMPTS if name in fields), None)) is not None:
        return f"{null}: is null; a request needs a prompt (or messages)"
    message = "has no prompt (nor messages)"
    if way := _not_rows(line):
        return f"{message}; {way}"
    found = next((name for name in line if _is_chat(line[name])), None)
    found = found or next((name for name in _LIKELY_PROMPTS if name in line), None)
    if found is None:
        for name in list(line)[:_NAMES_CHECKED]:
            if (meant := likely(name)) in _PROMPTS:
                return f"{message}; it has {name[:60]!r}: did you mean {meant}?"
    if not line.keys() - {"id", *_PROMPTS}:
        return message
    way = f"say which one holds it, --prompt-column {found or 'NAME'}, or use a --template"
    return f"{message}; its columns are {listed(list(line))}: {way}"


def _not_rows(line: dict[str, Any]) -> str | None:
    """What to do with an object that holds the rows instead of being one; None if it does not look so."""
    for name, value in line.items():
        if _is_chat(value) and not any("role" in each for each in value):
            return f"its {name!r} is a list of objects: make each a line: jq -c '.{name}[]' FILE > NEW"
    if line and all(isinstance(value, dict) and "0" in value for value in line.values()):
        return "it holds columns, as DataFrame.to_json does: write rows, with orient='records', lines=True"
    return None


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "it looks binary" if b"\0" in data else "save the file as UTF-8"
        raise InputError(f"is not UTF-8 at byte {error.start + 1} of the line; {hint}") from None


def _not_json(text: str, error: json.JSONDecodeError) -> str:
    stripped = text.strip()
    where = f"column {error.colno}: {error.msg}"
    if stripped in ("{", "[") or (stripped.startswith("{") and stripped.endswith(",")):
        return "is not JSON on its own; write it on one line (jq -c . FILE > NEW), or use --input-format json"
    if error.msg == "Extra data":
        return f"is not JSON ({where}); put each object on its own line"
    if stripped.startswith("{'") or "None" in stripped or "True" in stripped:
        return f"is not JSON ({where}); it looks like Python: write it with json.dumps"
    return f"is not JSON ({where}); correct the line, or name the kind of file: --input-format text, csv, …"


def _odd_number(text: str) -> str | None:
    """Which field holds NaN, an infinity, or a whole number of more digits than Python reads."""
    with contextlib.suppress(ValueError, RecursionError):
        line = _TOLERANT.decode(text)
        body = line.get("body") if isinstance(line, dict) else None
        for fields in (body, line):
            if isinstance(fields, dict) and (fault := unsendable(fields)):
                return fault
    return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; use null or a number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is above 1.8e308; use null or a smaller number")
    return value


def _readable(digits: str) -> int:
    """0 for a number that Python reads, else one that cannot be sent."""
    try:
        int(digits)
    except ValueError:
        return MOST_WHOLE + 1
    return 0


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
"""Made once: json.loads would make one for each line."""
_TOLERANT = json.JSONDecoder(parse_int=_readable)
"""For lines that the other one refuses."""
