"""The callers of the fleet, read from Redis twice a second, so that no request costs a command for its token."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time

from brimful.state.callers.tokens import REVISION, CallerRecord, digest_of, parse_record
from brimful.state.keys import callers_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.callers.clock import CallersClock
from brimful_worker.serve.callers.usage import Usage
from brimful_worker.serve.refusals import Refusal, redis_away, unavailable
from brimful_worker.singles.pipeline import SharedPipeline

log = logging.getLogger(__name__)

TRUSTED_S = 30.0
"""How long known tokens are valid while Redis does not answer: one may have been revoked."""


class Registry:
    """One front door's view of its fleet's callers."""

    every_s = 0.5
    """Seconds from one reading to the next."""

    def __init__(self, fleet: str, usage: Usage, clock: CallersClock, *, required: bool) -> None:
        """``required``: nobody may ask without a token, even if there is none yet."""
        self._key = callers_key(fleet)
        self._usage = usage
        self._clock = clock
        self._callers: dict[str, CallerRecord] = {}
        self._revision: bytes | None = None
        self._read_at: float | None = None
        self.known = asyncio.Event()
        """Set once the callers have been read."""
        self.required = required
        """Stays True once this process has seen a token: an emptied Redis opens no door."""

    async def watch(self, pipeline: SharedPipeline) -> None:
        """Never returns."""
        while True:
            try:
                began = time.monotonic()
                await self._look(pipeline)
                self._read_at = began
                self.known.set()
                await self.write_usage(pipeline)
            except REDIS_ERRORS as error:
                log.debug("the callers could not be read: %s", type(error).__name__)
            await asyncio.sleep(self.every_s)

    async def write_usage(self, pipeline: SharedPipeline) -> None:
        """Raises redis.RedisError."""
        callers = self._callers.values()
        if any(caller.limited for caller in callers):
            await self._clock.read(pipeline)
        await self._usage.exchange(pipeline, [each.name for each in callers if each.budget_tokens], self._clock.now_s)
        self._usage.show_budgets(callers)

    def named(self, name: str) -> CallerRecord | None:
        return next((caller for caller in self._callers.values() if caller.name == name), None)

    def resolve(self, token: str | None, provider_key: str) -> CallerRecord | None:
        """The token's caller; None for somebody without one, where none is required.

        Raises Refusal: 401 for a token that is wrong or missing, 503 while it is not known which are right.
        """
        if token is not None and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), provider_key.encode()):
            raise _unauthorized("this is the provider's API key, which is the server's own: send a caller's token")
        if self._read_at is None:
            raise unavailable("this server has not reached its Redis yet", "starting", 1)
        if time.monotonic() - self._read_at > TRUSTED_S:
            raise redis_away()
        if not self.required:
            return None
        if token is None:
            raise _unauthorized("a token is needed: send it as `Authorization: Bearer TOKEN`")
        caller = self._callers.get(digest_of(token))
        if caller is None:
            raise _unauthorized("this token is unknown, or was revoked: the server's operator gives out tokens")
        return caller

    async def _look(self, pipeline: SharedPipeline) -> None:
        revision = await pipeline.ask("HGET", self._key, REVISION)
        if revision == self._revision:
            return
        fields = await pipeline.ask("HGETALL", self._key)
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        self._revision = found.pop(REVISION.encode(), None)
        self.required = self.required or bool(found) or self._revision is not None
        records = {name: parse_record(raw) for name, raw in found.items()}
        self._callers = {record.digest: record for record in records.values() if record is not None}
        self._usage.begin(sorted(record.name for record in self._callers.values()))
        for name in (name for name, record in records.items() if record is None):
            log.error("caller %r is refused: a later brimful wrote its record, or it is damaged", name[:64])


def _unauthorized(message: str) -> Refusal:
    return Refusal(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
