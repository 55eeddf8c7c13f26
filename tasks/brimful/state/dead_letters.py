"""Dead letters: messages that no worker could run, as kept in a bounded list in Redis.

A letter says why and when a message was set aside. It has the message's headers and a digest of it, but never its body,
which holds prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import redis

from brimful.state.keys import DEAD_LETTERS

MOST = 1000
"""Letters that are kept."""
TTL_S = 30 * 24 * 3600
"""The list expires this long after the last letter."""
_HIDDEN = ("argsrepr", "kwargsrepr")
"""Headers that may hold arguments, and so prompts."""
_HEADERS, _NAME, _VALUE = 30, 40, 120
"""Headers that a letter keeps, and the characters of a name and of a value."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was set aside."""

    why: str
    queue: str
    at: float
    """Unix seconds."""
    worker: str
    id: str | None = None
    """The task's id, if the message has one."""
    task: str | None = None
    sha256: str = ""
    """Of the queue item as it was read; of the body, once the message was taken apart."""
    size: int = 0
    """Bytes of what the digest is of."""
    headers: dict[str, str] = field(default_factory=dict)
    """``repr`` of each, cut short, without those that hold arguments."""


def digest(content: Any) -> tuple[str, int]:
    """SHA-256 and size of what a message consists of."""
    raw = content if isinstance(content, bytes) else str(content).encode("utf-8", "surrogatepass")
    return hashlib.sha256(raw).hexdigest(), len(raw)


def shown_headers(headers: Any) -> dict[str, str]:
    """Headers as a letter keeps them; nothing of headers that are no mapping."""
    if not isinstance(headers, Mapping):
        return {}
    kept = [(str(name), value) for name, value in headers.items() if name not in _HIDDEN][:_HEADERS]
    return {name[:_NAME]: _short_repr(value) for name, value in kept}


def _short_repr(value: Any) -> str:
    text = repr(value[: 2 * _VALUE] if isinstance(value, str) else value)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}…"


def add(client: redis.Redis, letter: DeadLetter) -> None:
    """Put a letter into the list, and drop the oldest beyond :data:`MOST`. Raises redis.RedisError."""
    with client.pipeline(transaction=True) as pipe:
        pipe.lpush(DEAD_LETTERS, json.dumps(asdict(letter)))
        pipe.ltrim(DEAD_LETTERS, 0, MOST - 1)
        pipe.expire(DEAD_LETTERS, TTL_S)
        pipe.execute()


def read(client: redis.Redis, count: int) -> tuple[int, list[DeadLetter]]:
    """The number of letters kept, and the newest ``count``. Raises redis.RedisError."""
    with client.pipeline(transaction=False) as pipe:
        pipe.llen(DEAD_LETTERS)
        pipe.lrange(DEAD_LETTERS, 0, count - 1)
        total, raw = pipe.execute()
    return int(total), [_letter(json.loads(each)) for each in raw]


def _letter(raw: Mapping[str, Any]) -> DeadLetter:
    """From a worker of any version: unknown fields are ignored."""
    known = {each.name for each in fields(DeadLetter)}
    return DeadLetter(**{name: value for name, value in raw.items() if name in known})
