"""Requests with an ``Idempotency-Key`` are sampled once, across all front doors of a fleet, and get the same answer.

The first to *claim* the key samples; duplicates wait for it. A claim is a value in Redis with a TTL, renewed while the
request is sampled, so that the duplicates of a front door that dies go on. The answer replaces the claim, for
``BRIMFUL_RESULT_EXPIRES_S``. A request that ends without an answer gives its claim back, and is sampled by the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Self

from brimful.config import Settings
from brimful.runtime import json_bytes
from brimful.runtime.aio import cancel_and_wait
from brimful.state.keys import answer_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.redis_url import required
from brimful_worker.lua_script import load_script
from brimful_worker.serve.records import Owner
from brimful_worker.serve.refusals import NO_RETRY, Refusal, redis_away
from brimful_worker.singles.pipeline import SharedPipeline

_RELEASE = load_script("brimful_worker.singles", "release.lua")
_TTL_MS = 12_000
_LOOK_S = 0.2
_CLAIMED = b"claimed"
_ANSWERED = b"answered"


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The head of a stored answer. The body follows it in the value, since it may be large."""

    content_type: str
    provider_request_id: str | None = None


class Claim:
    """One request's claim on its key: :meth:`take` it, then :meth:`release` it however the request has ended."""

    def __init__(self, once: Once, key: str, digest: bytes) -> None:
        self._once = once
        self.key = key
        self._digest = digest
        self._value = b" ".join((_CLAIMED, digest, uuid.uuid4().hex.encode()))
        self._asked = False

    async def take(self) -> tuple[StoredAnswer, bytes] | None:
        """None: the request is this one's to sample. Otherwise the answer of an earlier one, which is waited for.

        Raises Refusal: 422 if the key was used for another request, 503 without Redis.
        """
        ask = self._once.pipeline.ask
        while True:
            try:
                self._asked = True
                if await ask("SET", self.key, self._value, "NX", "PX", _TTL_MS) is not None:
                    self._once.held.add(self)
                    return None
                value = await ask("GET", self.key)
            except REDIS_ERRORS:
                raise redis_away() from None
            if value is not None and (found := self._read(value)) is not None:
                return found
            await asyncio.sleep(_LOOK_S)

    async def keep(self, answer: StoredAnswer, body: bytes) -> None:
        """The request has its answer. Without Redis it is not kept, but given to this caller."""
        value = b" ".join((_ANSWERED, self._digest, json_bytes.encode(asdict(answer)))) + b"\n" + body
        with contextlib.suppress(*REDIS_ERRORS):
            await self._once.pipeline.ask("SET", self.key, value, "EX", self._once.expires_s)

    def release(self) -> None:
        """Without waiting: if it fails, the claim expires. An answer stays."""
        self._once.held.discard(self)
        if self._asked:
            self._once.pipeline.call(_RELEASE, [self.key], self._value)

    def _read(self, value: bytes) -> tuple[StoredAnswer, bytes] | None:
        head, _, body = value.partition(b"\n")
        state, digest, rest = head.split(b" ", 2)
        if digest != self._digest:
            message = "this Idempotency-Key was used for another request; use a key for each"
            raise Refusal(422, message, "idempotency_key_reused", headers=NO_RETRY)
        return (_stored(rest), body) if state == _ANSWERED else None


class Once:
    """The idempotency keys at one front door. An async context manager; everything is used on its event loop."""

    def __init__(self, settings: Settings) -> None:
        self._url = required(settings.redis_url)
        self._fleet = settings.fleet
        self.expires_s = settings.result_expires_s
        self.held: set[Claim] = set()

    async def __aenter__(self) -> Self:
        self.pipeline = SharedPipeline(self._url, "brimful-serve")
        self.pipeline.start()
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait([self._renewing])
        await self.pipeline.aclose()

    def claim(self, owner: Owner, key: str, request: bytes) -> Claim:
        """``request``: what must be the same under the same key."""
        named = "\0".join((owner.name, *([owner.id] if owner.id else []), key))
        identity = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        digest = hashlib.sha256(request).hexdigest()[:32].encode()
        return Claim(self, answer_key(identity, self._fleet), digest)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_TTL_MS / 4000)
            for claim in self.held:
                self.pipeline.ask("PEXPIRE", claim.key, _TTL_MS)


def _stored(raw: bytes) -> StoredAnswer:
    """From a front door of any version."""
    fields: dict[str, Any] = json_bytes.decode(raw)
    return StoredAnswer(str(fields.get("content_type", "application/json")), fields.get("provider_request_id"))
