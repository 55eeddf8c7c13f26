"""Rows of CSV and of tab-separated text as JSON: cells are text, except under the name of a request's field."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

from brimful.errors import InputError
from brimful.nesting import MOST_WHOLE, unsendable
from brimful.run.input.files.columns import check_columns, unnamed
from brimful.run.input.files.csv_split import Cells, split_rows
from brimful.run.input.files.row import MAX_ROW, Row, to_json
from brimful.words.counted import counted

_JSON_FIELDS = frozenset({
    "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "messages",
    "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "response_format", "tools", "tool_choice", "extra_body",
})  # fmt: skip
"""Fields of a request that are not text: a cell holds JSON."""
_TEXT_FIELDS = frozenset({"prompt", "id", "model", "mode", "system"})
"""Fields of a request that are text: an empty cell is no value."""
Form = Callable[[str], Any]
_TO_UTF8 = "save the file as UTF-8, for instance: iconv -f latin1 -t utf-8 FILE > NEW"


def csv_rows(
    stream: io.BufferedReader, name: str, *, tabs: bool, header: bool, wanted: tuple[str, ...], carried: frozenset[str]
) -> Iterator[Row]:
    """``tabs``: the file is called tab-separated. ``wanted``: columns that it must have. ``carried``: those that are
    text whatever their names are.

    A row of the wrong length, or with bytes that are not UTF-8, has a fault. Raises InputError for a file that is not
    CSV.
    """
    csv.field_size_limit(MAX_ROW)  # of the process: a reader that ends must not lower it for another
    rows = split_rows(stream, name, tabs=tabs)
    place, cells, fault = next((row for row in rows if row.cells or row.fault), Cells(1, []))
    if fault is not None:
        raise InputError(f"{name}:{place}: {fault}")
    names = [(header and cell.strip()) or unnamed(number) for number, cell in enumerate(cells, 1)]
    if not _is_utf8("".join(names)):
        raise InputError(f"{name}:{place}: a column's name is not UTF-8; {_TO_UTF8}")
    forms = _forms(names, wanted, carried)
    check_columns(name, names, wanted, " (if the first row is data: --no-header)" if header else "")
    if not header and cells:
        yield _row(place, cells, names, forms)
    for place, cells, fault in rows:
        yield _row(place, cells, names, forms, fault)


def _row(place: int, cells: list[str], names: list[str], forms: list[Form], fault: str | None = None) -> Row:
    if fault is not None:
        return Row(place, to_json(cells).encode("utf-8", "replace"), fault=fault)
    if not cells:
        return Row(place, b"")
    if len(cells) != len(names):
        data = to_json(cells).encode("utf-8", "replace")
        return Row(
            place,
            data,
            fault=f"has {counted(len(cells), 'cell')}, but the header names {counted(len(names), 'cell')}: correct the "
            "row",
        )
    values = {name: form(cell) for name, form, cell in zip(names, forms, cells, strict=True)}
    try:
        text = to_json(values)
    except ValueError:
        return Row(place, to_json(cells).encode("utf-8", "replace"), fault=unsendable(values) or "is no JSON")
    if _is_utf8(text):
        data = text.encode()
        return Row(place, data[:MAX_ROW], overlong=len(data) > MAX_ROW, table=True)
    bad = next(name for name, cell in zip(names, cells, strict=True) if not _is_utf8(cell))
    return Row(place, text.encode("utf-8", "surrogateescape"), fault=f"column {bad!r} is not UTF-8; {_TO_UTF8}")


def _forms(names: list[str], wanted: tuple[str, ...], carried: frozenset[str]) -> list[Form]:
    """What a cell of each column means: under the name of a request's field it is what the field takes."""

    def form(name: str) -> Form:
        if name in wanted:
            return _text_or_null
        if name in carried:
            return str
        if name in _JSON_FIELDS:
            return lambda cell: _json_or_text(cell) if cell else None
        if name == "stop":
            return lambda cell: _json_or_text(cell) if cell.startswith("[") else cell or None
        return _text_or_null if name in _TEXT_FIELDS else str

    return [form(name) for name in names]


def _text_or_null(cell: str) -> str | None:
    return cell or None


def _json_or_text(cell: str) -> Any:
    try:
        return json.loads(cell)
    except (json.JSONDecodeError, RecursionError):
        return cell
    except ValueError:  # thousands of digits
        return MOST_WHOLE + 1


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
