"""What kind of file an input is, by its name and its first bytes; and what is refused, with the way out.

A file whose name and content disagree is refused, except for kinds of JSON, which differ in content only.
"""

from __future__ import annotations

import json
import re
from typing import Any

from brimful.errors import InputError
from brimful.run.input.files.lines import Head
from brimful.run.input.formats import InputFormat

PACKED = (".gz", ".zst", ".zstd")
BY_SUFFIX = {
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".json": InputFormat.JSON,
    ".csv": InputFormat.CSV,
    ".tsv": InputFormat.TSV,
    ".tab": InputFormat.TSV,
    ".parquet": InputFormat.PARQUET,
    ".pq": InputFormat.PARQUET,
    ".arrow": InputFormat.ARROW,
    ".feather": InputFormat.ARROW,
    ".ipc": InputFormat.ARROW,
    ".txt": InputFormat.TEXT,
    ".text": InputFormat.TEXT,
    ".md": InputFormat.TEXT,
}
_SHEET = "a spreadsheet: save the sheet as CSV"
_DATABASE = "a database: write a table of it as CSV"
_PICKLE = "a pickle, which may run code when it is read: write Parquet (DataFrame.to_parquet)"
_ARRAYS = "no table of text: write Parquet or JSON lines"
_ARCHIVE = "an archive: unpack it, and name the file in it"
_MARKUP = "no list of prompts: write JSON lines"
_STATISTICS = "a statistics package's own file: write Parquet or CSV (pandas reads it)"
FOREIGN_SUFFIXES = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"), _SHEET),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db", ".duckdb"), _DATABASE),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), _PICKLE),
    **dict.fromkeys((".npy", ".npz", ".pt", ".pth", ".safetensors", ".h5", ".hdf5", ".mat"), _ARRAYS),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".bz2", ".xz"), _ARCHIVE),
    **dict.fromkeys((".yaml", ".yml", ".xml", ".html", ".htm", ".toml", ".ini", ".ipynb"), _MARKUP),
    **dict.fromkeys((".avro", ".orc"), "not supported: write Parquet"),
    **dict.fromkeys((".dta", ".sav", ".sas7bdat", ".rds", ".rda", ".rdata"), _STATISTICS),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".rtf"), "a document: write its text as .txt or JSON lines"),
}
"""Why a file with this suffix is no input: its name is followed by ``is``."""
_FOREIGN = {
    b"PK\x03\x04": "a zip archive or a spreadsheet: save a sheet as CSV, or unpack the archive",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"%PDF": FOREIGN_SUFFIXES[".pdf"],
    b"BZh": "a bzip2 file: unpack it, or use .gz or .zst",
    b"\xfd7zXZ": "an xz file: unpack it, or use .gz or .zst",
    b"SQLite format 3": _DATABASE,
    b"\x89HDF": _ARRAYS,
    b"\x93NUMPY": _ARRAYS,
    b"Obj\x01": FOREIGN_SUFFIXES[".avro"],
    b"FEA1": "Feather version 1: write it again, as Parquet or with a newer pyarrow",
    b"\xd0\xcf\x11\xe0": _SHEET,
    b"\x80\x02": _PICKLE,
    b"\x80\x03": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
    b"version https://git-lfs": "only a pointer of Git LFS: fetch the file with git lfs pull",
}
_MAGIC = {b"PAR1": InputFormat.PARQUET, b"ARROW1": InputFormat.ARROW, b"\xff\xff\xff\xff": InputFormat.ARROW}
_WORDS = {
    InputFormat.PARQUET: "a Parquet file",
    InputFormat.ARROW: "an Arrow file",
    InputFormat.CSV: "CSV",
    InputFormat.TSV: "tab-separated text",
    InputFormat.JSONL: "JSON",
    InputFormat.JSON: "JSON",
    InputFormat.TEXT: "text",
}
_ARRAY = re.compile(rb'\[\s*(?:[{"]|\]?$)')
TABLES = (InputFormat.CSV, InputFormat.TSV, InputFormat.PARQUET, InputFormat.ARROW)
HEAD = 32
"""Bytes that :func:`kind` looks at."""


def kind(name: str, suffix: str, head: bytes, asked: InputFormat) -> InputFormat:
    """A table's kind, or AUTO for lines and JSON: :func:`line_kind` decides which. ``asked``: what the user named.

    Raises InputError for what no kind is read from.
    """
    found = next((form for magic, form in _MAGIC.items() if head.startswith(magic)), None)
    if found is None and (what := next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)):
        raise InputError(f"{name}:1: is {what}")
    named = BY_SUFFIX.get(suffix) if asked is InputFormat.AUTO else asked
    if named not in (None, InputFormat.TEXT) and head.lower().startswith((b"<!doctype html", b"<html")):
        raise InputError(f"{name}:1: is a web page, not {_WORDS[named]}; download the file itself")
    if found is None:
        if named in (InputFormat.PARQUET, InputFormat.ARROW):
            begins = f"it begins with {head[:16]!r}" if head else "it is empty"
            raise InputError(f"{name}: is not {_WORDS[named]} ({begins}); create it again, or correct its name")
        return named if named in TABLES else InputFormat.AUTO
    if named not in (None, found):
        way = f"rename it, or add --input-format {found}" if asked is InputFormat.AUTO else "leave out --input-format"
        raise InputError(f"{name}:1: is {_WORDS[found]}, not {_WORDS[named]}: {way}")
    return found


def line_kind(suffix: str, head: Head) -> InputFormat:
    """JSONL, JSON or TEXT, from the name and the first line that is not blank."""
    first = head.first.strip()
    named = BY_SUFFIX.get(suffix)
    if named is InputFormat.TEXT:
        whole = _try_json(first) if head.whole else None
        if isinstance(whole, list):
            return InputFormat.JSON
        known = isinstance(whole, dict) and whole.keys() & {"prompt", "messages", "body"}
        return InputFormat.JSONL if known else InputFormat.TEXT
    if (first.startswith(b"[") and named is InputFormat.JSON) or _ARRAY.match(first):
        return InputFormat.JSON
    if first.startswith(b"{") or named is not None:
        return InputFormat.JSON if head.whole and _goes_on(first, named) else InputFormat.JSONL
    return InputFormat.TEXT


def _goes_on(first: bytes, named: InputFormat | None) -> bool:
    """Whether the line begins a value that is written over several lines. In JSON lines it is rather a cut one."""
    if named is InputFormat.JSONL:
        return first == b"{"
    return first.startswith((b"{", b"[")) and first.endswith((b"{", b"[", b",")) and _try_json(first) is None


def _try_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
