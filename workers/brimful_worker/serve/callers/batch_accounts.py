"""What batches cost their callers: budget held back while they run, and lines and tokens of the minute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import resources

from brimful.state.callers.tokens import TOKENS, CallerRecord, usage_field
from brimful.state.keys import caller_batches_key, callers_usage_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.callers.minute import count_lines_in_minute
from brimful_worker.serve.callers.registry import Registry
from brimful_worker.serve.callers.usage import Usage
from brimful_worker.serve.records import Owner
from brimful_worker.singles.pipeline import SharedPipeline

log = logging.getLogger(__name__)

_SCRIPT = resources.files("brimful_worker.serve.callers").joinpath("batch_hold.lua").read_text("utf-8")
LEASE_S = 60
"""For how long the budget is held back unless it is asked for again, as when the last front door has died."""


class BatchAccounts:
    """One front door's. A batch whose caller's token was revoked is charged to nobody."""

    def __init__(self, fleet: str, registry: Registry, usage: Usage, pipeline: Callable[[], SharedPipeline]) -> None:
        self._fleet = fleet
        self._registry = registry
        self._usage = usage
        self._pipeline = pipeline

    async def hold(self, owner: Owner, batch: str, tokens: int, *, again: bool = False) -> str | None:
        """Hold back ``tokens`` of the budget for :data:`LEASE_S`. ``again``: it held as many before.

        Returns None, or why they are not held: that fewer are left. Raises redis.RedisError.
        """
        caller = await self._caller(owner)
        if caller is None or not caller.budget_tokens or not tokens:
            return None
        keys = callers_usage_key(self._fleet), caller_batches_key(self._fleet)
        named = usage_field(caller.name, TOKENS), caller.name, batch
        figures = caller.budget_tokens, tokens, LEASE_S, int(again)
        left = await self._pipeline().ask("EVAL", _SCRIPT, 2, *keys, *named, *figures)
        if left < 0:
            return None
        return (
            f"the token budget of caller {caller.name} does not suffice: of {caller.budget_tokens:,} tokens {left:,} "
            f"are neither spent nor held by batches under way, and this one may use {tokens:,}"
        )

    async def ended(self, owner: Owner, batch: str, requests: int, tokens: int) -> None:
        """Count what it has used, and hold nothing back any more."""
        if await self._caller(owner) is not None:
            self._usage.add(owner.name, requests, tokens)
        if owner.name:
            self._pipeline().ask("HDEL", caller_batches_key(self._fleet), f"{owner.name} {batch}")

    async def count(self, owner: Owner, name: str, lines: int, tokens: int) -> None:
        """Count lines that are done in the caller's minute; not without Redis. ``name``: of this step."""
        if (caller := await self._caller(owner)) is None:
            return
        try:
            await count_lines_in_minute(self._pipeline(), self._fleet, caller, name, lines, tokens)
        except REDIS_ERRORS as error:
            log.debug("lines of a batch were not counted in the minute: %s", type(error).__name__)

    async def _caller(self, owner: Owner) -> CallerRecord | None:
        """Waits until the callers are known."""
        if not owner.name:
            return None
        await self._registry.known.wait()
        found = self._registry.named(owner.name)
        return found if found is not None and owner.id in ("", found.id) else None
