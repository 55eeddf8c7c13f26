"""The endpoints of files. A caller sees its own files only: another's are not found."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import hdrs, web

from brimful.errors import FleetError
from brimful_worker.serve.caller import CALLER
from brimful_worker.serve.files.store import StoredFile
from brimful_worker.serve.files.upload import receive
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.listing import json_response, listing
from brimful_worker.serve.refusals import Refusal

log = logging.getLogger(__name__)


async def create_file(http: web.Request) -> web.Response:
    front = http.app[FRONT]
    try:
        stored = await receive(http, front.files, front.settings.serve_file_max, front.settings.serve_keep_s)
    except ConnectionError:
        raise
    except (OSError, FleetError) as error:
        log.error("a file could not be stored: %s", error)
        raise Refusal(507, "this server cannot store files now", "storage") from None
    return json_response(stored.document())


async def list_files(http: web.Request) -> web.Response:
    found = await asyncio.to_thread(http.app[FRONT].files.of, http[CALLER].owner)
    if (purpose := http.query.get("purpose")) is not None:
        found = [each for each in found if each.purpose == purpose]
    return listing(http, found, usual=10_000, most=10_000)


async def get_file(http: web.Request) -> web.Response:
    return json_response(_find(http).document())


async def file_content(http: web.Request) -> web.StreamResponse:
    stored = _find(http)
    response = web.FileResponse(http.app[FRONT].files.data(stored.id))
    response.headers[hdrs.CONTENT_TYPE] = "application/octet-stream"
    return response


async def delete_file(http: web.Request) -> web.Response:
    stored = _find(http)
    await asyncio.to_thread(http.app[FRONT].files.delete, stored.id)
    return json_response({"id": stored.id, "object": "file", "deleted": True})


def _find(http: web.Request) -> StoredFile:
    id = http.match_info["file"]
    if (stored := http.app[FRONT].files.get(id, http[CALLER].owner)) is None:
        raise Refusal(404, f"No such File object: {id[:100]}", "file_not_found", param="id")
    return stored
