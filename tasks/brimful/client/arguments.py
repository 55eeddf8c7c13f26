"""Checks what a service passes to a client, before a message is made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from kombu.utils.json import dumps

from brimful.errors import BadRequest, SettingError
from brimful.names import Workload
from brimful.packing.packing import SCALARS


def checked_workload(value: Workload | str) -> Workload:
    """Raises BadRequest."""
    try:
        return Workload(value)
    except ValueError:
        raise BadRequest(f"workload: {value!r} is not one of {', '.join(Workload)}") from None


def check_message(fields: Mapping[str, Any]) -> None:
    """Raises BadRequest for a value that no task's message can hold, such as a set or a number of NumPy's."""
    for name, value in fields.items():
        _check(name, value, dumps)


def check_packable(fields: Mapping[str, Any]) -> None:
    """As :func:`check_message`, for a parsed request of a map: packing compares its fields as JSON, but no prompts."""
    for name, value in fields.items():
        if name != "prompt":
            _check(name, value, dumps if name == "messages" else json.dumps)


def check_timeout(timeout: float | None) -> None:
    """Raises SettingError for what is no number of seconds."""
    if timeout is not None and not is_number(timeout):
        raise SettingError(f"timeout={timeout!r}: must be seconds, or None to wait without end")


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def _check(name: str, value: Any, encode: Any) -> None:
    if type(value) in SCALARS:
        return
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"{name}: must be made of JSON's types: {error}") from None
