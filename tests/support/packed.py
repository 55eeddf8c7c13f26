"""Lines of a run, and requests that carry them, as its driver makes them."""

from __future__ import annotations

from typing import Any

from brimful.packing.packing import PackedRequest, slices_of
from brimful.packing.request_size import line_profile
from brimful.packing.units import Unit
from brimful.profile import get_profile
from brimful.request import Request

ACS = get_profile("acs")


def unit(line: int, *, wanted: Any = None, **fields: Any) -> Unit:
    raw = {"prompt": f"p{line}", "max_tokens": 8, **fields}
    return Unit(line, f"id{line}", Request.parse(raw, line_profile(ACS)), wanted)


def packed(id: str, *lines: int, **fields: Any) -> PackedRequest:
    """One request that carries these lines."""
    pairs = [pair for line in lines for pair in slices_of(unit(line, **fields), ACS)]
    return PackedRequest(id, pairs[0][0], tuple(each for _, each in pairs))
