"""JSON forms of Arrow's types, for what JSON does not have: times, decimals, bytes, NaN, maps."""

from __future__ import annotations

import base64
import math
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types

Finish = Callable[[Any], Any]
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OFFSET = re.compile(r"([+-]\d\d)(\d\d)$")
_NO_FRACTION = re.compile(r"\.0+(?=$|[Z+-])")


def text_form(kind: Any) -> Any:
    """The type to cast to, so that ``to_pylist`` loses no digit of a value.

    Times, dates and decimals become text, durations whole numbers, dictionaries and extensions what they stand for.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return text_form(kind.storage_type)
    if types.is_dictionary(kind):
        inner = text_form(kind.value_type)
        return kind if inner == kind.value_type else inner
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind):
        return pa.string()
    if types.is_duration(kind):
        return pa.int64()
    if types.is_struct(kind):
        return pa.struct([field.with_type(text_form(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(text_form(kind.key_type), text_form(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(text_form(kind.value_type)), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(text_form(kind.value_type)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_form(kind.value_type)))
    return kind


def finisher(kind: Any) -> Finish | None:
    """What makes a value that is not None JSON-ready once it was cast; None where it is so already."""
    if isinstance(kind, pa.BaseExtensionType):
        named = getattr(kind, "extension_name", "")
        return (lambda value: str(uuid.UUID(bytes=value))) if named == "arrow.uuid" else finisher(kind.storage_type)
    if types.is_dictionary(kind):
        return finisher(kind.value_type)
    if types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else None
    if types.is_timestamp(kind) or types.is_time(kind):
        return _iso
    if types.is_duration(kind):
        per_second = _PER_SECOND[kind.unit]
        return lambda value: value / per_second
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if types.is_map(kind):
        return _map(finisher(kind.key_type), finisher(kind.item_type))
    if types.is_struct(kind):
        return _struct({field.name: finish for field in kind if (finish := finisher(field.type))}, _is_message(kind))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = finisher(kind.value_type)
        return None if inner is None else lambda value: [finished(each, inner) for each in value]
    return None


def finished(value: Any, finish: Finish | None) -> Any:
    return value if value is None or finish is None else finish(value)


def _struct(finishers: Mapping[str, Finish], message: bool) -> Finish | None:
    """``message``: members that are null are left out. Arrow gives all messages of a chat the same members."""
    if not finishers and not message:
        return None

    def finish(value: dict[str, Any]) -> dict[str, Any]:
        done = {name: finished(each, finishers.get(name)) for name, each in value.items()}
        return {name: each for name, each in done.items() if each is not None} if message else done

    return finish


def _is_message(kind: Any) -> bool:
    return {"role", "content"} <= {field.name for field in kind}


def _map(key: Finish | None, item: Finish | None) -> Finish:
    """An object where the keys are text, else a list of pairs."""

    def finish(value: list[tuple[Any, Any]]) -> Any:
        pairs = [(finished(name, key), finished(each, item)) for name, each in value]
        return dict(pairs) if all(isinstance(name, str) for name, _ in pairs) else pairs

    return finish


def _iso(value: str) -> str:
    """ISO 8601, from Arrow's own form. The same time has the same text in every unit."""
    return _NO_FRACTION.sub("", _OFFSET.sub(r"\1:\2", value.replace(" ", "T", 1)))
