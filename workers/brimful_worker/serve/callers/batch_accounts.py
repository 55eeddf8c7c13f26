"""Counts batches against their callers' limits: tokens are reserved while they run, then what they used is charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from brimful.state.callers.tokens import REQUESTS, TOKENS, CallerRecord, usage_field
from brimful.state.keys import caller_batches_key, callers_usage_key, charged_key
from brimful_worker.lua_script import load_script
from brimful_worker.serve.callers.clock import CallersClock, timed_script
from brimful_worker.serve.callers.minute import Minutes
from brimful_worker.serve.callers.registry import Registry
from brimful_worker.serve.callers.usage import Usage
from brimful_worker.serve.records import Owner
from brimful_worker.singles.pipeline import SharedPipeline

_HOLD = timed_script("batch_hold.lua")
_CHARGE = load_script("brimful_worker.serve.callers", "batch_charge.lua")
LEASE_S = 60
"""For how long the budget is held back unless it is asked for again, as when the last front door has died."""
_CHARGED_S = 30 * 86400
"""For how long it is known that a batch was charged: a front door that dies after that step repeats it."""


class BatchAccounts:
    """The accounts of one front door's batches. A batch whose caller's token was revoked is charged to nobody."""

    def __init__(
        self,
        fleet: str,
        registry: Registry,
        usage: Usage,
        minutes: Minutes,
        clock: CallersClock,
        pipeline: Callable[[], SharedPipeline],
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._usage = usage
        self._minutes = minutes
        self._clock = clock
        self._pipeline = pipeline

    async def hold(self, owner: Owner, batch: str, tokens: int, *, again: bool = False) -> str | None:
        """Hold back ``tokens`` of the budget for :data:`LEASE_S`. ``again``: it held as many before.

        Returns None, or why they are not held: that fewer are left. Raises redis.RedisError.
        """
        caller = await self.caller(owner)
        if caller is None or not caller.budget_tokens or not tokens:
            return None
        keys = callers_usage_key(self._fleet), caller_batches_key(self._fleet)
        named = usage_field(caller.name, TOKENS), caller.name, batch
        figures = caller.budget_tokens, tokens, LEASE_S, int(again)
        left = await self._clock.call(self._pipeline(), _HOLD, keys, *named, *figures)
        if left < 0:
            return None
        return (
            f"the token budget of caller {caller.name} is too small for this batch: of {caller.budget_tokens:,} tokens "
            f"{left:,} are neither spent nor held by batches under way, and this batch may use up to {tokens:,}"
        )

    async def charge(self, owner: Owner, batch: str, requests: int, tokens: int) -> None:
        """Count what the batch has used, once however often this is called, and hold nothing back for it any more.

        Raises redis.RedisError.
        """
        if not owner.name:
            return
        held = f"{owner.name} {batch}"
        if await self.caller(owner) is None:
            await self._pipeline().ask("HDEL", caller_batches_key(self._fleet), held)
            return
        keys = callers_usage_key(self._fleet), caller_batches_key(self._fleet), charged_key(self._fleet, batch)
        fields = [usage_field(owner.name, kind) for kind in (REQUESTS, TOKENS)]
        if await self._pipeline().call(_CHARGE, keys, held, *fields, requests, tokens, _CHARGED_S):
            self._usage.charged(owner.name, requests, tokens)

    async def caller(self, owner: Owner) -> CallerRecord | None:
        """Waits until the callers are known. None: a caller without a token, or whose token was revoked."""
        if not owner.name:
            return None
        await self._registry.known.wait()
        found = self._registry.named(owner.name)
        return found if found is not None and owner.id in ("", found.id) else None

    async def count_lines(self, caller: CallerRecord, batch: str, first: int, tokens: Sequence[int]) -> int:
        """As :meth:`Minutes.count_lines`."""
        return await self._minutes.count_lines(self._pipeline(), caller, batch, first, tokens)

    def settle(self, owner: Owner, used: Mapping[str, int]) -> None:
        """As :meth:`Minutes.settle`."""
        self._minutes.settle(self._pipeline(), self._registry.named(owner.name), used)
