"""The Lua scripts: read, put together, and known by their hash. One typed wrapper each.

A script may be lost at any time (SCRIPT FLUSH, restart, failover): it is sent by hash, and whole on NOSCRIPT.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import redis

from brimful_worker.admission.keys import Keys

_AT_ONCE = 10_000
_INCLUDE = re.compile(r"^--#include (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


@lru_cache
def load(name: str) -> Script:
    """The script ``lua/<name>.lua`` with its parts put in."""
    folder = resources.files("brimful_worker.admission").joinpath("lua")
    text = folder.joinpath(f"{name}.lua").read_text("utf-8")
    text = _INCLUDE.sub(lambda part: folder.joinpath(part[1]).read_text("utf-8"), text)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def exchange_arguments(keys: Keys, message: bytes) -> list[Any]:
    """Number of keys, keys and arguments of ``exchange.lua``, to follow EVALSHA and hash, or EVAL and text."""
    names = keys.of("exchange")
    return [len(names), *names, message, keys.to, keys.everyone]


def assume_full(client: redis.Redis, tag: str, *, starts: int | None, tokens: int | None) -> None:
    """What this key did in the last window is not known any more: count it as full just now, so that a whole window
    passes before anything starts. Called as :func:`mark_clean` is; ``None`` = no such limit."""
    names = Keys(tag).names
    seconds, micros = client.time()
    now = seconds * 1000 + micros // 1000 + int(client.hget(names["state"], "skew") or 0)
    unknown = f"unknown.{secrets.token_hex(8)}"
    pipe = client.pipeline(transaction=True)
    for first in range(0, starts or 0, _AT_ONCE):
        places = range(first, min(first + _AT_ONCE, starts or 0))
        pipe.zadd(names["starts"], {f"{unknown}.{place}": now for place in places})
    if tokens:
        pipe.zadd(names["tokens"], {unknown: now})
        pipe.hset(names["amounts"], unknown, str(tokens))
        pipe.hincrby(names["state"], "tokens_sum", tokens)
    pipe.execute()


def mark_clean(client: redis.Redis, tag: str) -> str:
    """Vouch for the memory of a server just started, no process of this key being alive. Returns the epoch.

    Without it the first process on a young server waits a lease, since processes of before may be on their way back.
    """
    script, keys = load("mark_clean"), Keys(tag).of("mark_clean")
    server: dict[str, Any] = client.info("server")
    result: Any = client.eval(script.text, len(keys), *keys, str(server["run_id"]), secrets.token_hex(8))
    return result.decode() if isinstance(result, bytes) else str(result)
