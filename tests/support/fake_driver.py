"""A stand-in for ``brimful.dispatch.driver.Driver`` that needs no fleet: it answers every unit itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from brimful.outcome import Failure, Outcome, Rollout
from brimful.packing.units import Delivered, DriveStatus, Failed, Recovered, Unit
from brimful.run.output.done_index import all_pairs

Answer = Callable[[Unit, int, int], str | Failure | tuple[str, str]]


class Killed(Exception):
    """Stands for a SIGKILL after a batch was yielded."""


class FakeDriver:
    """``answer(unit, prompt, choice)`` returns a text, ``(text, finish_reason)``, or a Failure of the whole line."""

    def __init__(
        self,
        answer: Answer = lambda unit, prompt, choice: f"{unit.id}/{prompt}/{choice}",
        *,
        batch: int = 3,
        ahead: int = 8,
        die_after: int | None = None,
        recovered: Recovered | None = None,
        reverse: bool = False,
        split: random.Random | None = None,
        finish_outstanding: list[Delivered | Failed] | None = None,
        prompt_tokens: Callable[[Unit], int] = lambda unit: 4,
        model: str = "llama-8b",
        asked_model: str = "",
    ) -> None:
        self._answer = answer
        self._batch = batch
        self._ahead = ahead
        self._die_after = die_after
        self._recovered = recovered or Recovered([], frozenset())
        self._reverse = reverse
        self._split = split
        self._outstanding = finish_outstanding or []
        self._prompt_tokens = prompt_tokens
        self._models = model, asked_model
        self._stopped: bool | None = None
        self.asked: list[Unit] = []
        self.total: int | None = None
        self.status = DriveStatus()
        self.refused: Failure | None = None

    async def recover(self) -> Recovered:
        return self._recovered

    async def deliveries(
        self, units: AsyncIterator[Unit], *, total: int | None
    ) -> AsyncIterator[list[Delivered | Failed]]:
        self.total = total
        if self._outstanding:
            yield self._outstanding
        waiting: list[Unit] = []
        done = 0
        async for unit in units:
            self.asked.append(unit)
            waiting.append(unit)
            if len(waiting) < self._ahead and not self._stopped:
                continue
            async for batch in self._flush(waiting):
                done += len(batch)
                yield batch
                if self._die_after is not None and done >= self._die_after:
                    raise Killed
            waiting = []
            if self._stopped is not None:
                break
        async for batch in self._flush(waiting):
            yield batch

    async def stop(self, *, drain: bool) -> None:
        self._stopped = drain

    def snapshot(self) -> DriveStatus:
        return self.status

    async def aclose(self) -> None: ...

    async def _flush(self, waiting: list[Unit]) -> AsyncIterator[list[Delivered | Failed]]:
        items = [item for unit in waiting for item in self._ended(unit)]
        if self._reverse:
            items.reverse()
        if self._split is not None:
            items = [one for item in items for one in single(item)]
            self._split.shuffle(items)
        for start in range(0, len(items), self._batch):
            await asyncio.sleep(0)
            yield items[start : start + self._batch]

    def _ended(self, unit: Unit) -> list[Delivered | Failed]:
        wanted = tuple(all_pairs(unit.request)) if unit.wanted is None else unit.wanted
        now = time.time()
        self.status.attempts += 1
        outcome = Outcome(
            id=f"r-{unit.line}-{now}", attempts=1, provider_s=0.5, waited_s=0.1, started_at=now, ended_at=now + 0.5
        )
        rollouts: list[Rollout] = []
        chat = "messages" in unit.request.fields
        for prompt, choice in wanted:
            answer = self._answer(unit, prompt, choice)
            if isinstance(answer, Failure):
                return [Failed(unit.line, unit.id, unit.request, wanted, answer, outcome)]
            text, reason = answer if isinstance(answer, tuple) else (answer, "stop")
            own = {"message": {"role": "assistant", "content": text}} if chat else {"text": text, "logprobs": None}
            rollouts.append(
                Rollout(prompt, choice, text, reason, {"index": len(rollouts), "finish_reason": reason, **own})
            )
        asked, sampled = self._prompt_tokens(unit), 2 * len(rollouts)
        usage = {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}
        model, asked_model = self._models
        return [Delivered(unit.line, unit.id, rollouts, model, usage, outcome, 1, asked_model)]


def single(item: Delivered | Failed) -> list[Delivered | Failed]:
    """One delivery for each rollout, as when a line was split."""
    if isinstance(item, Failed):
        return [item]
    parts: list[Delivered | Failed] = []
    for place, rollout in enumerate(item.rollouts):
        outcome = replace(item.outcome, id=f"{item.outcome.id}-{place}")
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        parts.append(replace(item, rollouts=[rollout], outcome=outcome, usage=usage))
    return parts
