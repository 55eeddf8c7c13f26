"""Queue items as a Celery client puts them into Redis, and the forms in which they can be malformed."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

ABSENT = object()
"""A value that takes the entry out."""


def item(
    id: Any = None,
    *,
    queue: str = "celery",
    task: Any = "t.plain",
    call: Any = ((1, 2), {}, {}),
    raw_body: str | None = None,
    headers: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """A good message, with changes. ``call`` is its body; ``raw_body`` is the body's JSON, before base64."""
    text = json.dumps(call) if raw_body is None else raw_body
    message = {
        "body": base64.b64encode(text.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _changed({"lang": "py", "task": task, "id": id}, headers or {}),
        "properties": _changed(
            {
                "correlation_id": id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": uuid.uuid4().hex,
            },
            properties or {},
        ),
    }
    return _changed(message, {name.replace("_", "-"): value for name, value in parts.items()})


def _changed(original: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (original | changes).items() if value is not ABSENT}


def spoilt(id: str, changes: dict[str, Any]) -> dict[str, Any]:
    changes = dict(changes)
    headers = changes.pop("headers_", ABSENT)
    message = item(id, **changes)
    return message if headers is ABSENT else message | {"headers": headers}


SECRET = "prompt-canary-5d1e"
NAN = float("nan")

WITH_ID: dict[str, dict[str, Any]] = {
    "body is a number": {"raw_body": "5"},
    "body is null": {"raw_body": "null"},
    "body is an empty list": {"raw_body": "[]"},
    "body has two elements": {"raw_body": "[[], {}]"},
    "body has four elements": {"raw_body": "[[], {}, {}, {}]"},
    "body is a string": {"raw_body": f'"{SECRET}"'},
    "body is not JSON": {"raw_body": f"[[{SECRET}"},
    "body nests too deeply": {"raw_body": "[" * 100_000},
    "body holds a broken date": {"raw_body": json.dumps([[{"__type__": "datetime", "__value__": SECRET}], {}, {}])},
    "body is a list that names args": {"raw_body": '["args", {}, {}]'},
    "body is empty": {"body": ""},
    "body is absent": {"body": ABSENT},
    "body is an object": {"body": {}},
    "body is not base64": {"body": "%%%"},
    "args are an object": {"raw_body": "[{}, {}, {}]"},
    "args are null": {"raw_body": "[null, {}, {}]"},
    "kwargs are null": {"raw_body": '[["a"], null, {}]'},
    "kwargs are a list": {"raw_body": '[["a"], [], {}]'},
    "embed is a number": {"raw_body": "[[1, 2], {}, 5]"},
    "callbacks are a number": {"raw_body": '[[1, 2], {}, {"callbacks": 5}]'},
    "chain of numbers": {"raw_body": '[[1, 2], {}, {"chain": [5]}]'},
    "chord is a list": {"raw_body": '[[1, 2], {}, {"chord": []}]'},
    "content-type is null": {"content_type": None},
    "content-type is a number": {"content_type": 5},
    "content-type is unknown": {"content_type": "application/x-flurb"},
    "content-type is pickle": {"content_type": "application/x-python-serialize"},
    "content-encoding is a list": {"content_encoding": []},
    "task is a list": {"task": [1]},
    "task is null": {"task": None},
    "task is absent": {"task": ABSENT},
    "task is unknown": {"task": "no.such.task"},
    "timelimit is a string": {"headers": {"timelimit": "abc"}},
    "timelimit of three": {"headers": {"timelimit": [1, 2, 3]}},
    "timelimit of strings": {"headers": {"timelimit": ["1", "2"]}},
    "timelimit is not a number": {"headers": {"timelimit": [NAN, NAN]}},
    "stamps are a list": {"headers": {"stamps": [1], "stamped_headers": ["a"]}},
    "stamped_headers are a number": {"headers": {"stamped_headers": 7}},
    "stamped_headers of lists": {"headers": {"stamped_headers": [[1]], "stamps": {}}},
    "eta is no time": {"headers": {"eta": "yesterday-ish"}},
    "eta is a number": {"headers": {"eta": 5}},
    "eta is an object": {"headers": {"eta": {}}},
    "eta is in the year 1": {"headers": {"eta": "0001-01-01T00:00:00+14:00"}},
    "eta is in the year 9999": {"headers": {"eta": "9999-12-31T23:59:59-14:00"}},
    "expires is no time": {"headers": {"expires": "never"}},
    "expires is a list": {"headers": {"expires": []}},
    "retries are a string": {"headers": {"retries": "many"}},
    "group is a list": {"headers": {"group": [1]}},
    "root_id is an object": {"headers": {"root_id": {}}},
    "parent_id is an object": {"headers": {"parent_id": {}}},
    "shadow is a list": {"headers": {"shadow": [1]}},
    "argsrepr is a list": {"headers": {"argsrepr": [1]}},
    "compression is unknown": {"headers": {"compression": "application/x-squash"}},
    "compression is a list": {"headers": {"compression": [1]}},
    "compressed by nobody": {"headers": {"compression": "application/x-gzip"}},
    "headers are a string": {"headers_": "x"},
    "headers are a list": {"headers_": [1]},
    "headers are null": {"headers_": None},
    "delivery_info is a string": {"properties": {"delivery_info": "x"}},
    "delivery_info is absent": {"properties": {"delivery_info": ABSENT}},
    "delivery_info is empty": {"properties": {"delivery_info": {}}},
    "routing_key is a number": {"properties": {"delivery_info": {"exchange": "", "routing_key": 5}}},
    "delivery_tag is an object": {"properties": {"delivery_tag": {}}},
    "delivery_tag is a number": {"properties": {"delivery_tag": 5}},
    "delivery_tag is absent": {"properties": {"delivery_tag": ABSENT}},
    "body_encoding is unknown": {"properties": {"body_encoding": "rot13"}},
    "body_encoding is a number": {"properties": {"body_encoding": 5}},
    "reply_to is a list": {"properties": {"reply_to": [1]}},
}
"""Changes to a good message that keep its id. Each is set aside, and its task fails."""
AMQP_FORMS = [
    form
    for form, changes in WITH_ID.items()
    if changes.keys() <= {"raw_body", "headers", "task"} or form == "content-type is unknown"
]
"""Of these, the forms that a message of AMQP can have."""
FAILED_BY_CELERY = ("eta is in the year 1", "eta is in the year 9999")
"""Of these, the forms that Celery fails by itself, without a dead letter."""
WITHOUT_ID: dict[str, bytes] = {
    "id is an object": json.dumps(item({"a": 1})).encode(),
    "id is null": json.dumps(item(None)).encode(),
    "id is a number": json.dumps(item(5)).encode(),
    "id is half a character": json.dumps(item("\ud800")).encode(),
    "properties are absent": json.dumps({"body": "", "headers": {}}).encode(),
    "properties are a list": json.dumps(item("x") | {"properties": [1]} | {"headers": {}}).encode(),
    "item is not JSON": b"hello",
    "item is empty": b"",
    "item is binary": b"\x80\x04\xff\x00\xfe",
    "item is a list": b"[]",
    "item is a number": b"5",
    "item is null": b"null",
    "item is a string": b'"x"',
    "item is an empty object": b"{}",
    "item is cut short": json.dumps(item("y")).encode()[:-9],
    "item nests too deeply": b"[" * 100_000,
    "item is a long number": b"9" * 10_000,
}
"""Items without an id that a sender could wait for."""
TAKEN_APART = ("id is null", "id is half a character")
"""Of these, the forms that are a message as far as kombu sees: their letters have the digest of the body."""
