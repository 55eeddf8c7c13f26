"""A request of an earlier submitter, from the message that carries it and the manifest that says what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from brimful.errors import BadRequest
from brimful.names import Mode
from brimful.packing.packing import PackedRequest, Slice, slices_of
from brimful.packing.request_size import line_profile, prompt_bytes
from brimful.packing.units import Manifest, Unit
from brimful.profile import Profile
from brimful.request import Request


def rebuilt(id: str, manifest: Manifest, fields: Any, profile: Profile) -> PackedRequest | None:
    """None where the two do not belong together. The lines' requests in it are those of one prompt each."""
    if not isinstance(fields, Mapping) or not manifest:
        return None
    try:
        request = Request.parse(fields, line_profile(profile))
        shape, _ = next(slices_of(Unit(0, "", replace(request, id="")), profile))
    except (BadRequest, StopIteration):
        return None
    prompts = request.prompts
    n = len(manifest[0].choices)
    if len(prompts) != len(manifest) or request.n != n:
        return None
    if shape.n != n:
        return None
    parts = []
    for piece, prompt in zip(manifest, prompts, strict=True):
        name = "messages" if request.mode is Mode.CHAT else "prompt"
        line = Request({**request.fields, name: prompt}, "", request.mode, request.workload)
        wanted = tuple((piece.prompt_index, choice) for choice in piece.choices)
        unit = Unit(piece.line, piece.id, line, wanted)
        parts.append(Slice(unit, piece.prompt_index, piece.choices, prompt, prompt_bytes(prompt)))
    return PackedRequest(id, shape, tuple(parts))
