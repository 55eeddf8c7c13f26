"""JSON as UTF-8 bytes, for every string that Python can hold: the one encoder and decoder that both packages use.

It stands alone so that requests, outcomes and output lines agree on the values that orjson refuses.
"""

from __future__ import annotations

import json
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


def _dumps(value: Any, sort: bool) -> str:
    return json.dumps(value, sort_keys=sort, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
