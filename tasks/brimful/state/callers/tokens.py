"""Callers of the front door, what they have used, and their tokens, of which Redis has only the SHA-256.

A token is 256 random bits, so a plain hash of it cannot be guessed back: the slow hashes that passwords need would only
cost every request its time. Each change raises a revision, by which front doors notice it.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import redis

from brimful.errors import UsageError
from brimful.runtime import json_bytes
from brimful.state.keys import caller_starts_key, caller_tokens_keys, callers_key, callers_usage_key

REVISION = ""
"""Field of the hash that counts the changes; no caller's name. It stays when the last token is revoked."""
_VERSION = 1
_ID_LENGTH = 16
_PREFIX = "brimful_"
"""By which scanners for secrets find a token."""
REQUESTS, TOKENS, WAITED_MS = KINDS = ("requests", "tokens", "waited_ms")
"""What is counted of each caller."""
_UNREADABLE = 2**63 - 1
"""Tokens that count as spent where Redis holds no number: nothing may be spent that cannot be counted."""
_YEAR_10000 = 253_402_300_800
"""In Unix seconds: the first that is no date of Python's."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class CallerRecord:
    """One caller, as stored."""

    name: str
    digest: str
    """Of its token (:func:`digest_of`)."""
    created: float
    """Seconds, Unix."""
    budget_tokens: int = 0
    """The most that it may use in all; 0: no such limit."""
    weight: float = 1.0
    """Its share of the slots and starts while several callers wait: with 2 it gets twice as many as with 1. Above 0."""

    starts: int = 0
    """The most requests in any minute; 0: no such limit."""
    slots: int = 0
    """The most requests on the wire or waiting for the key at once; 0: no such limit."""
    tokens_per_minute: int = 0
    """The most tokens of requests that come in any minute; 0: no such limit."""

    @property
    def minute_limited(self) -> bool:
        """Whether it has a limit of requests or of tokens a minute."""
        return bool(self.starts or self.tokens_per_minute)

    @property
    def limited(self) -> bool:
        """Whether it has a limit for which front doors read the callers' clock."""
        return bool(self.minute_limited or self.slots or self.budget_tokens)

    @property
    def id(self) -> str:
        """Of the token: a name that is revoked and added again gets another one."""
        return self.digest[:_ID_LENGTH]


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def stored_count(value: bytes | str | None) -> int:
    """A count as Redis has it; the largest number where it has none that can be read."""
    try:
        return int(value or 0)
    except ValueError:
        return _UNREADABLE


def usage_field(caller: str, kind: str) -> str:
    return f"{kind} {caller}"


def add_caller(
    client: redis.Redis,
    fleet: str,
    name: str,
    *,
    budget_tokens: int = 0,
    weight: float = 1.0,
    starts: int = 0,
    slots: int = 0,
    tokens_per_minute: int = 0,
) -> str:
    """The new caller's token, which cannot be had again. Raises UsageError for a bad name and one that exists."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r}: a caller's name has 1 to 64 letters, digits, '_', '.', '-', the first no sign")
    token = _PREFIX + secrets.token_urlsafe(32)
    limits = budget_tokens, weight, starts, slots, tokens_per_minute
    record = CallerRecord(name, digest_of(token), time.time(), *limits)

    def add(pipe: redis.client.Pipeline) -> None:
        if pipe.hexists(callers_key(fleet), name):
            raise UsageError(
                f"{name}: has a token already; first `brimful serve token revoke {name}`, or take another name"
            )
        pipe.multi()
        pipe.hset(callers_key(fleet), name, _stored(record))
        # Requests that outlived the revocation of an earlier token were still counted.
        pipe.hdel(callers_usage_key(fleet), *(usage_field(name, kind) for kind in KINDS))
        pipe.hincrby(callers_key(fleet), REVISION, 1)

    client.transaction(add, callers_key(fleet))
    return token


def change_caller(
    client: redis.Redis,
    fleet: str,
    name: str,
    *,
    budget_tokens: int | None = None,
    weight: float | None = None,
    starts: int | None = None,
    slots: int | None = None,
    tokens_per_minute: int | None = None,
) -> CallerRecord:
    """None leaves a value as it is. Raises UsageError if there is no such caller."""
    found = _find(client, fleet, name)
    named: dict[str, Any] = {
        "budget_tokens": budget_tokens,
        "weight": weight,
        "starts": starts,
        "slots": slots,
        "tokens_per_minute": tokens_per_minute,
    }
    record = replace(found, **{limit: value for limit, value in named.items() if value is not None})
    pipe = client.pipeline(transaction=True)
    pipe.hset(callers_key(fleet), name, _stored(record))
    pipe.hincrby(callers_key(fleet), REVISION, 1)
    pipe.execute()
    return record


def revoke_caller(client: redis.Redis, fleet: str, name: str) -> None:
    """Its counts are deleted too. Raises UsageError if there is no such caller."""
    if name == REVISION or not client.hexists(callers_key(fleet), name):
        raise _unknown(name)
    pipe = client.pipeline(transaction=True)
    pipe.hdel(callers_key(fleet), name)
    pipe.delete(caller_starts_key(fleet, name), *caller_tokens_keys(fleet, name))
    pipe.hdel(callers_usage_key(fleet), *(usage_field(name, kind) for kind in KINDS))
    pipe.hincrby(callers_key(fleet), REVISION, 1)
    pipe.execute()


def list_callers(client: redis.Redis, fleet: str) -> dict[str, CallerRecord | None]:
    """All callers by name, in its order; None for a record that this version cannot read."""
    found: Mapping[str, str] = client.hgetall(callers_key(fleet))  # type: ignore[assignment]  # not the async client
    return {name: parse_record(found[name].encode()) for name in sorted(found) if name != REVISION}


def read_usage(client: redis.Redis, fleet: str) -> dict[str, dict[str, int]]:
    """Caller → kind → amount."""
    found: Mapping[str, str] = client.hgetall(callers_usage_key(fleet))  # type: ignore[assignment]
    usage: dict[str, dict[str, int]] = {}
    for entry, amount in found.items():
        kind, _, caller = entry.partition(" ")
        usage.setdefault(caller, dict.fromkeys(KINDS, 0))[kind] = stored_count(amount)
    return usage


def parse_record(raw: bytes) -> CallerRecord | None:
    """None if a later version wrote it, whose limits this one does not know, or if it is damaged: it admits nobody."""
    try:
        stored = json_bytes.decode(raw)
        if stored.get("version") != _VERSION:
            return None
        budget, weight = int(stored.get("budget_tokens", 0)), float(stored.get("weight", 1.0))
        name, digest, created = str(stored["name"]), str(stored["digest"]), float(stored["created"])
        counts = (int(stored.get(limit, 0)) for limit in ("starts", "slots", "tokens_per_minute"))
        record = CallerRecord(name, digest, created, budget, weight, *counts)
        return record if 0 < weight < math.inf and 0 <= created < _YEAR_10000 else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _find(client: redis.Redis, fleet: str, name: str) -> CallerRecord:
    raw = client.hget(callers_key(fleet), name) if name != REVISION else None
    if raw is None:
        raise _unknown(name)
    record = parse_record(str(raw).encode())
    if record is None:
        raise UsageError(
            f"{name}: this caller's record was written by a later brimful, or is damaged; change it with that version, "
            f"or revoke it: brimful serve token revoke {name}"
        )
    return record


def _unknown(name: str) -> UsageError:
    return UsageError(f"{name or 'an empty name'}: no caller has this name; `brimful serve token list` shows them")


def _stored(record: CallerRecord) -> bytes:
    return json_bytes.encode({"version": _VERSION, **asdict(record)})
