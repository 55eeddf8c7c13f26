"""What a line of an input means: a JSONL request, an OpenAI Batch line, a bare provider body, or plain text.

Each parser makes the fields of one request of one line, or raises InputError with the fault and its remedy, without the
``FILE:LINE:`` that the reader puts before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NoReturn

from brimful.errors import InputError
from brimful.names import Mode
from brimful.run.input.sources import Source
from brimful.run.input.unknown_fields import likely

_LIKELY_PROMPTS = ("text", "input", "question", "instruction", "query", "content", "user", "message")
_URLS = {"/completions": Mode.COMPLETION, "/chat/completions": Mode.CHAT, "/completion-jobs": Mode.JOB}
_ID_LENGTH = 512
_LOOKED_AT = 32  # names of a line without a prompt


class InputFormat(StrEnum):
    """``--input-format``"""

    AUTO = "auto"
    JSONL = "jsonl"
    """Objects with a prompt or messages, OpenAI Batch lines, provider bodies: told apart line by line."""
    TEXT = "text"
    """A prompt a line."""


Parser = Callable[[bytes], dict[str, Any]]


def detect(source: Source, first: bytes) -> InputFormat:
    """From the name and the first line that is not blank. Raises InputError when it is a JSON array, not lines."""
    text = first.strip()
    if text.startswith((b"[{", b'["')) or text == b"[":
        whole = _try_json(text)
        if source.suffix not in (".txt", ".text", ".md") or isinstance(whole, list):
            raise InputError("is a JSON array; one object a line is wanted: jq -c '.[]' FILE > FILE.jsonl")
    if source.suffix in (".jsonl", ".ndjson", ".json"):
        return InputFormat.JSONL
    if source.suffix in (".txt", ".text", ".md"):
        whole = _try_json(text)
        known = isinstance(whole, dict) and whole.keys() & {"prompt", "messages", "body"}
        return InputFormat.JSONL if known else InputFormat.TEXT
    return InputFormat.JSONL if text.startswith(b"{") else InputFormat.TEXT


def parser(form: InputFormat) -> Parser:
    return parse_text if form is InputFormat.TEXT else parse_json


def parse_text(data: bytes) -> dict[str, Any]:
    """The whole line is the prompt."""
    return {"prompt": _decode(data)}


def parse_json(data: bytes) -> dict[str, Any]:
    """The fields of a request, with ``id`` (a string, or missing) and, where the line tells it, ``mode``."""
    text = _decode(data)
    try:
        line = _DECODER.decode(text)
    except RecursionError:
        raise InputError("is nested too deeply to be read; flatten it") from None
    except json.JSONDecodeError as error:
        raise InputError(_not_json(text, error)) from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"is not JSON: {error}") from None
    if not isinstance(line, dict):
        kind = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}.get(
            type(line), "a number"
        )
        raise InputError(f'is {kind}, but an object is wanted: {{"prompt": …}}')
    fields = _batch_line(line) if "body" in line and "prompt" not in line else dict(line)
    fields = {name: value for name, value in fields.items() if value is not None}
    if "id" in fields:
        fields["id"] = _id(fields["id"], "custom_id" if "custom_id" in line else "id")
    if "prompt" not in fields and "messages" not in fields:
        _no_prompt(line)
    return fields


def _batch_line(line: dict[str, Any]) -> dict[str, Any]:
    """``{"custom_id", "method", "url", "body"}`` of OpenAI's Batch API."""
    body = line["body"]
    if not isinstance(body, dict):
        raise InputError("body: must be an object, the request as the endpoint takes it")
    if (method := line.get("method", "POST")) != "POST":
        raise InputError(f"method: must be POST, not {method!r}")
    fields = dict(body)
    fields["id"] = line.get("custom_id", line.get("id"))
    if (url := line.get("url")) is not None:
        known = [mode for end, mode in _URLS.items() if isinstance(url, str) and url.rstrip("/") in (end, "/v1" + end)]
        if not known:
            raise InputError(f"url: {url!r} is none of /v1/completions, /v1/chat/completions, /v1/completion-jobs")
        fields["mode"] = known[0].value
    return fields


def _id(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{name}: must be a string or a number")
    text = str(value)
    if not text or len(text) > _ID_LENGTH:
        raise InputError(f"{name}: must have 1 to {_ID_LENGTH} characters, not {len(text):,}")
    return text


def _no_prompt(line: dict[str, Any]) -> NoReturn:
    found = [name for name in _LIKELY_PROMPTS if name in line]
    hint = f"; it has {found[0]!r}: rename that to prompt" if found else ""
    near = [] if found else [name for name in list(line)[:_LOOKED_AT] if likely(name) in ("prompt", "messages")]
    if near:
        hint = f"; it has {near[0][:60]!r}: did you mean {likely(near[0])}?"
    raise InputError(f"has no prompt (nor messages){hint}")


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
        return "is not JSON by itself; each line must be a whole object: jq -c . FILE > FILE.jsonl"
    if error.msg == "Extra data":
        return f"is not JSON ({where}); put each object on a line of its own"
    if stripped.startswith("{'") or "None" in stripped or "True" in stripped:
        return f"is not JSON ({where}); it looks like Python: write it with json.dumps"
    return f"is not JSON ({where}); correct the line, or say --input-format text if each line is a prompt"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number; use null or a number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""Made once: json.loads would make one for each line."""


def _try_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
