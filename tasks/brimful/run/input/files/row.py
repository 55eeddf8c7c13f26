"""A row of an input as bytes, whatever kind of file it comes from."""

from __future__ import annotations

import json
from typing import NamedTuple

MAX_ROW = 64 * 1024 * 1024
"""Bytes of one row. A longer one is cut there, and the reader refuses it."""

to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Not orjson, which writes some numbers differently: a digest must not depend on what is installed."""


class Row(NamedTuple):
    """One line of text or JSON, or one row of a table."""

    place: int
    """1-based: the line of its file where it begins; in Parquet and Arrow, which have no lines, its row."""
    data: bytes
    """JSON, or a line of text without its line ending; blank for a blank line."""
    overlong: bool = False
    """Longer than MAX_ROW, and cut there."""
    text: bool = False
    """The whole of it is a prompt."""
    table: bool = False
    """Of a table, whose columns need not be meant as fields of a request."""
    fault: str | None = None
    """Why it is no row of its table, with the remedy."""
