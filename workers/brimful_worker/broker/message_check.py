"""Whether a queue item is a message that Celery can run. Pure functions: each returns what is wrong, or None.

Celery and kombu take messages as they come. A wrong type in one raises somewhere on the worker's main thread, which
ends the worker, and the message is then given to the next one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any

_TEXTS = ("root_id", "parent_id", "group", "shadow", "argsrepr", "kwargsrepr", "compression")
_WHOLE_NUMBERS = ("retries", "replaced_task_nesting", "group_index")
_CALLS = ("callbacks", "errbacks", "chain")
_LONGEST_NAME = 1024
_UTF8 = "utf-8"


def check_item(item: Any, body_encodings: Container[str]) -> str | None:
    """``item``: a queue item, decoded from JSON. Checks what kombu reads before it hands the message to Celery."""
    if not isinstance(item, dict):
        return f"the item is {_kind(item)}, not an object"
    properties = item.get("properties")
    if not isinstance(properties, dict):
        return f"properties: {_kind(properties)}, not an object"
    tag = properties.get("delivery_tag")
    if not isinstance(tag, str) or not tag:
        return f"delivery_tag: {_kind(tag)}, not a string with text in it"
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, dict):
        return f"delivery_info: {_kind(delivery)}, not an object"
    for name in ("exchange", "routing_key"):
        if not isinstance(delivery.get(name), str):
            return f"delivery_info: {name} is {_kind(delivery.get(name))}, not a string"
    for name in ("correlation_id", "reply_to"):
        if not isinstance(properties.get(name), str | None):
            return f"{name}: {_kind(properties[name])}, not a string"
    headers = item.get("headers")
    if not isinstance(headers, dict | None):
        return f"headers: {_kind(headers)}, not an object"
    encoding = properties.get("body_encoding")
    if not isinstance(encoding, str | None):
        return f"body_encoding: {_kind(encoding)}, not a string"
    if encoding and encoding.lower() != _UTF8 and encoding not in body_encodings:
        return f"body_encoding: {encoding[:40]!r} is unknown"
    for name in ("body", "content-type", "content-encoding"):
        if not isinstance(item.get(name), str | None):
            return f"{name}: {_kind(item[name])}, not a string"
    return None


def check_headers(headers: Mapping[str, Any]) -> str | None:
    """``headers`` of a task, of Celery's protocol 2; for protocol 1, the body without its arguments."""
    for name in ("task", "id"):
        if not is_name(headers.get(name)):
            return f"{name}: {_kind(headers.get(name))}, not a string of 1 to {_LONGEST_NAME} valid characters"
    for name in _TEXTS:
        if not isinstance(headers.get(name), str | None):
            return f"{name}: {_kind(headers[name])}, not a string"
    for name in ("eta", "expires"):
        if not isinstance(headers.get(name), str | datetime | None):
            return f"{name}: {_kind(headers[name])}, not a time"
    for name in _WHOLE_NUMBERS:
        value = headers.get(name)
        if value is not None and (type(value) is not int or value < 0):
            return f"{name}: not a whole number of at least 0"
    limits = headers.get("timelimit")
    if limits is not None and not (isinstance(limits, list) and len(limits) == 2 and all(map(_is_limit, limits))):
        return "timelimit: not a list of two numbers (or null) of seconds"
    stamped = headers.get("stamped_headers")
    if stamped is not None and not (isinstance(stamped, list) and all(isinstance(name, str) for name in stamped)):
        return "stamped_headers: not a list of strings"
    if not isinstance(headers.get("stamps"), dict | None):
        return f"stamps: {_kind(headers['stamps'])}, not an object"
    return None


def check_arguments(args: Any, kwargs: Any, embed: Any) -> str | None:
    """The three parts of a task's body: its arguments, and the tasks that are linked to it."""
    if not isinstance(args, list | tuple):
        return f"the positional arguments are {_kind(args)}, not an array"
    if not isinstance(kwargs, dict):
        return f"the keyword arguments are {_kind(kwargs)}, not an object"
    if not isinstance(embed, dict | None):
        return f"the third part of the body is {_kind(embed)}, not an object"
    for name in _CALLS:
        calls = (embed or {}).get(name)
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            return f"{name}: not a list of signatures"
    if embed and not isinstance(embed.get("chord"), dict | None):
        return f"chord: {_kind(embed['chord'])}, not a signature"
    return None


def check_body(body: Any) -> str | None:
    """A decoded body of protocol 2: ``[args, kwargs, embed]``."""
    if not isinstance(body, list | tuple):
        return f"the body is {_kind(body)}, not [args, kwargs, embed]"
    if len(body) != 3:
        return f"the body has {len(body)} elements, not the three of [args, kwargs, embed]"
    return check_arguments(*body)


def headers_and_id(raw: bytes | str) -> tuple[Any, Any]:
    """The headers and the id of an item that is not a message, where it has them. kombu's own types stay undecoded."""
    try:
        item = json.loads(raw)
    except (ValueError, RecursionError):
        item = None
    if not isinstance(item, dict):
        return None, None
    properties = item.get("properties")
    return item.get("headers"), properties.get("correlation_id") if isinstance(properties, dict) else None


def is_name(value: Any) -> bool:
    """Whether it can be part of a Redis key: no lone surrogate, and not too long."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_limit(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and value >= 0 and math.isfinite(value))


def _kind(value: Any) -> str:
    """What a value is in JSON's words; never the value itself, which may be a prompt."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    if value == "":
        return "an empty string"
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
