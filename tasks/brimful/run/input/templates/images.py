"""Images of a messages template: a URL as it is, or a file below the input's folder as a data URL."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from brimful.errors import InputError
from brimful.words.phrases import cut

MAX_IMAGE = 20 << 20
"""Bytes of one image file."""
_URLS = ("https://", "http://", "data:")
_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}


def image_url(place: str, folder: Path | None, label: str) -> str:
    """``place`` is a URL or a path relative to ``folder``; None: the input has no folder.

    Raises InputError for a file outside the folder, also by a link, for one that is too large, and for any that is no
    PNG, JPEG, GIF or WebP: a line cannot name a file that is none of the input's, nor one that is no image.
    """
    if place.lower().startswith(_URLS):
        return place
    what = f"{label}: image {cut(place, 200)!r}"
    if folder is None:
        raise InputError(f"{what}: standard input has no folder to find it in; use a URL, or read a file")
    try:
        root = folder.resolve(strict=True)
        path = (root / place).resolve(strict=True)
        if not path.is_relative_to(root):
            raise InputError(f"{what}: is not below the input's folder {folder}; only images there are sent")
        data = _read(path, what)
    except (OSError, ValueError, RuntimeError) as error:  # not found, NUL in the name, a circle of links
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{what}: cannot be read from the input's folder {folder}: {reason}") from None
    return f"data:image/{_kind(data, what)};base64,{base64.b64encode(data).decode()}"


def _read(path: Path, what: str) -> bytes:
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{what}: is no file")
        if status.st_size > MAX_IMAGE:
            raise InputError(f"{what}: has {status.st_size:,} bytes, at most {MAX_IMAGE:,} are sent; make it smaller")
        return file.read(MAX_IMAGE + 1)[:MAX_IMAGE]


def _kind(data: bytes, what: str) -> str:
    for magic, kind in _KINDS.items():
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    raise InputError(f"{what}: is no PNG, JPEG, GIF or WebP image")
