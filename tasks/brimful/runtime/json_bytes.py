"""JSON as UTF-8 bytes, for every string that Python can hold: the one encoder and decoder that both packages use.

Requests, outcomes and output lines all use it, so that they agree on the values that orjson refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

try:
    import orjson
except ImportError:  # a plain install has only the standard library
    orjson = None  # type: ignore[assignment]


def encode(value: Any, *, sort: bool = False) -> bytes:
    """Compact JSON. ``sort`` orders the keys of objects, so that equal values give equal bytes.

    Lone surrogates are written as escapes (``\\ud800``), NaN and infinities as null. Raises TypeError or ValueError for
    a value that JSON has no form for.
    """
    if orjson is not None:
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
        except TypeError:  # a lone surrogate, or an integer beyond 64 bits
            pass
    try:
        text = _dumps(value, sort)
    except ValueError:
        text = _dumps(json.loads(json.dumps(value), parse_constant=lambda name: None), sort)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def decode(text: str | bytes) -> Any:
    """A JSON value, of all that ``json.loads`` reads. Integers beyond 64 bits may become floats.

    Raises ValueError for what is no JSON, and RecursionError.
    """
    if orjson is not None:
        try:
            return orjson.loads(text)
        except ValueError:  # a lone surrogate, NaN, or no JSON
            pass
    return json.loads(text)


def count_values(text: bytes, most: int, *, chunk: int = 2**18) -> int:
    """About how many values the text has: its commas and opening brackets. Those in strings may count as well, unless
    there are more than ``most`` with them. ``chunk``: the bytes that are looked at before other threads may run.
    """
    count = _separators(text)
    return count if count <= most else sum(map(_separators, _outside_strings(text, chunk)))


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _outside_strings(text: bytes, chunk: int) -> Iterator[bytes]:
    text = text.replace(rb"\\", b"").replace(rb"\"", b"")  # each quote that is left begins or ends a string
    inside = False
    for at in range(0, len(text), chunk):
        pieces = text[at : at + chunk].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= len(pieces) % 2 == 0


def _dumps(value: Any, sort: bool) -> str:
    return json.dumps(value, sort_keys=sort, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
