"""``POST /v1/files``: a multipart form, its file written to disk as it comes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import IO

from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError

from brimful_worker.serve.caller import CALLER
from brimful_worker.serve.files.store import Files, StoredFile, new_id
from brimful_worker.serve.refusals import Refusal

_AT_ONCE = 1 << 20
"""Bytes written at once."""
_MOST_FIELD = 4096
_MOST_FIELDS = 16
_SHORTEST_S = 3600
"""OpenAI's least ``expires_after[seconds]``."""


async def receive(http: web.Request, files: Files, most: int, keep_s: float) -> StoredFile:
    """``most``: bytes of a file. ``keep_s``: seconds that it is kept at most. Raises Refusal (400, 413) and OSError."""
    if http.content_type != "multipart/form-data":
        raise Refusal(400, "send the file as a form (multipart/form-data), with file and purpose", "invalid_form")
    if (http.content_length or 0) > most + _AT_ONCE:
        raise _too_large(most)
    data = files.unfinished()
    try:
        fields, size, name = await _read_form(http, data, most)
        _check(fields, size)
        now = time.time()
        stored = StoredFile(
            id=new_id(),
            caller=http[CALLER].owner.name,
            caller_id=http[CALLER].owner.id,
            bytes=size,
            created=now,
            expires=now + min(keep_s, _expires_after(fields, keep_s)),
            filename=name,
            purpose="batch",
        )
        await asyncio.to_thread(files.add, data, stored)
        return stored
    finally:
        await asyncio.shield(asyncio.to_thread(data.unlink, missing_ok=True))


async def _read_form(http: web.Request, data: Path, most: int) -> tuple[dict[str, str], int, str]:
    """The form's fields, and of its file the size, -1 without one, and the name."""
    fields: dict[str, str] = {}
    size, name = -1, ""
    try:
        async for part in await http.multipart():
            if not isinstance(part, BodyPartReader) or len(fields) > _MOST_FIELDS:
                raise Refusal(400, "the form has parts that no file upload has", "invalid_form")
            if part.name == "file":
                if size >= 0:
                    raise Refusal(400, "the form has several files; send one at a time", "invalid_form", param="file")
                name = (part.filename or "file.jsonl")[:255].encode(errors="replace").decode()
                size = await _write(part, data, most)
            else:
                fields[part.name or ""] = await _text(part)
    except (ValueError, RuntimeError, HttpProcessingError, web.RequestPayloadError):
        # The boundary, a part's header or the default charset is damaged.
        raise Refusal(400, "the body is not a valid multipart form", "invalid_form") from None
    return fields, size, name


async def _write(part: BodyPartReader, path: Path, most: int) -> int:
    size = 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", _AT_ONCE) as file:
        while chunk := await part.read_chunk(_AT_ONCE):
            size += len(chunk)
            if size > most:
                raise _too_large(most)
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(_sync, file)
    return size


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


async def _text(part: BodyPartReader) -> str:
    """Raises ValueError for what is no text."""
    text = bytearray()
    while chunk := await part.read_chunk(_MOST_FIELD):
        text += chunk
        if len(text) > _MOST_FIELD:
            raise Refusal(400, "a field of the form is too long", "invalid_form")
    return text.decode().strip()


def _check(fields: dict[str, str], size: int) -> None:
    if size < 0:
        raise Refusal(400, "file: missing from the form", "missing_required_parameter", param="file")
    if "purpose" not in fields:
        raise Refusal(400, "purpose: missing from the form", "missing_required_parameter", param="purpose")
    if fields["purpose"] != "batch":
        raise Refusal(400, "purpose: must be 'batch', the only one that is served", "invalid_purpose", param="purpose")


def _expires_after(fields: dict[str, str], keep_s: float) -> float:
    named = fields.get("expires_after[seconds]")
    if named is None:
        return keep_s
    if not named.isdecimal() or len(named) > 9 or int(named) < _SHORTEST_S:
        raise Refusal(
            400, f"expires_after[seconds]: must be a whole number of at least {_SHORTEST_S}", param="expires_after"
        )
    return float(named)


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"file: larger than {most:,} bytes (BRIMFUL_SERVE_FILE_MAX)", "file_too_large", param="file")
