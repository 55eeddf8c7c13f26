"""The endpoints of batches. A caller sees its own batches only: another's are not found."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from typing import Any

from aiohttp import web

from brimful.errors import FleetError
from brimful.nesting import MOST_LEVELS, too_deep
from brimful.runtime import json_bytes
from brimful_worker.serve.batches.record import ENDPOINTS, Batch
from brimful_worker.serve.batches.store import new_id
from brimful_worker.serve.caller import CALLER
from brimful_worker.serve.completions.reading import idempotency_key, read_object
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.listing import json_response, listing
from brimful_worker.serve.records import Owner
from brimful_worker.serve.refusals import Refusal

log = logging.getLogger(__name__)

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_METADATA = 16
_SHORTEST_S = 3600
"""OpenAI's least ``output_expires_after.seconds``."""


async def create_batch(http: web.Request) -> web.Response:
    front, owner = http.app[FRONT], http[CALLER].owner
    document, _ = await read_object(http)
    batch = _read(document, owner, front.settings.serve_keep_s)
    if (record := http[CALLER].record) is not None:
        batch.weight = record.weight
    if ENDPOINTS[batch.endpoint] not in front.settings.profile.modes:
        name = front.settings.profile.name
        raise Refusal(400, f"endpoint: the provider {name} has no such endpoint", "invalid_endpoint", param="endpoint")
    if (key := idempotency_key(http)) is not None:
        if too_deep(document):
            text = f"the body nests lists and objects more than {MOST_LEVELS} levels deep"
            raise Refusal(400, text, "invalid_json")
        batch.request_digest = hashlib.sha256(json_bytes.encode(document, sort=True)).hexdigest()
        for named in ([owner.name, key], [*owner, key]):  # the first as earlier versions did
            batch.id = f"batch_{hashlib.sha256(json_bytes.encode(named)).hexdigest()[:32]}"
            if (there := await asyncio.to_thread(front.batches.get, batch.id, owner)) is not None:
                return _same(there, batch)
    if record is not None:
        front.usage.check(record, 1)
    stored = await asyncio.to_thread(front.files.get, batch.input_file_id, owner)
    if stored is None:
        id = batch.input_file_id[:100]
        raise Refusal(404, f"No such File object: {id}", "file_not_found", param="input_file_id")
    if stored.purpose != "batch":
        raise Refusal(400, "input_file_id: its purpose is not batch", "invalid_purpose", param="input_file_id")
    try:
        made = await asyncio.to_thread(front.batches.create, batch, front.files.data(stored.id))
    except (OSError, FleetError) as error:
        log.error("a batch could not be stored: %s", error)
        raise Refusal(507, "this server cannot store batches now", "storage") from None
    front.scheduler.look()
    return _same(made, batch)


async def list_batches(http: web.Request) -> web.Response:
    found = await asyncio.to_thread(http.app[FRONT].batches.of, http[CALLER].owner)
    return listing(http, found, usual=20, most=100)


async def get_batch(http: web.Request) -> web.Response:
    return json_response((await _find(http)).document())


async def cancel_batch(http: web.Request) -> web.Response:
    batch = await _find(http)
    if batch.over or batch.status == "finalizing":
        raise Refusal(409, f"Cannot cancel a batch with status '{batch.status}'.", "batch_over")
    await asyncio.to_thread(http.app[FRONT].batches.cancel, batch.id)
    return json_response((await _find(http)).document())


async def _find(http: web.Request) -> Batch:
    id = http.match_info["batch"]
    if (batch := await asyncio.to_thread(http.app[FRONT].batches.get, id, http[CALLER].owner)) is None:
        raise Refusal(404, f"No batch found with id '{id[:100]}'.", "batch_not_found", param="id")
    return batch


def _same(there: Batch, batch: Batch) -> web.Response:
    if there.request_digest != batch.request_digest:
        raise Refusal(422, "Idempotency-Key: was used for another batch", "idempotency_key_reused")
    return json_response(there.document())


def _read(document: dict[str, Any], owner: Owner, keep_s: float) -> Batch:
    """Raises Refusal (400)."""
    endpoint, window = _text(document, "endpoint"), _text(document, "completion_window")
    if endpoint not in ENDPOINTS:
        raise Refusal(400, f"endpoint: must be {' or '.join(ENDPOINTS)}", "invalid_endpoint", param="endpoint")
    if (found := _WINDOW.fullmatch(window)) is None:
        text = "completion_window: must be a time such as 24h: a number and s, m, h or d"
        raise Refusal(400, text, "invalid_completion_window", param="completion_window")
    now = time.time()
    return Batch(
        id=new_id(),
        caller=owner.name,
        caller_id=owner.id,
        endpoint=endpoint,
        input_file_id=_text(document, "input_file_id"),
        completion_window=window,
        created=now,
        expires_at=int(now) + int(found[1]) * _SECONDS[found[2]],
        metadata=_metadata(document.get("metadata")),
        output_keep_s=_keep_s(document.get("output_expires_after"), keep_s),
    )


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        raise Refusal(400, f"{name}: missing", "missing_required_parameter", param=name)
    if not isinstance(value, str):
        raise Refusal(400, f"{name}: must be a string", "invalid_type", param=name)
    return value


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > _MOST_METADATA:
        raise Refusal(400, f"metadata: must be an object of at most {_MOST_METADATA} pairs", param="metadata")
    for name, value in given.items():
        if len(name) > 64 or not isinstance(value, str) or len(value) > 512:
            text = "metadata: its keys have at most 64 characters, and its values are strings of at most 512"
            raise Refusal(400, text, param="metadata")
    return given


def _keep_s(given: Any, keep_s: float) -> float:
    if given is None:
        return keep_s
    seconds = given.get("seconds") if isinstance(given, dict) and given.get("anchor") == "created_at" else None
    if not isinstance(seconds, int) or seconds < _SHORTEST_S:
        text = f'output_expires_after: must be {{"anchor": "created_at", "seconds": {_SHORTEST_S} or more}}'
        raise Refusal(400, text, param="output_expires_after")
    return min(keep_s, seconds)
