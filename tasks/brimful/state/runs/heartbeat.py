"""Writes a run's entry and reads what is asked of the run, in a pipeline that its submitter sends anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from brimful.state.keys import RUNS, entry_key
from brimful.state.runs.entry import LEFT_TTL_S, Asked

Figures = Callable[[], Mapping[str, str | int | float]]
"""The entry's fields as they are now, without ``ask`` and ``asked_by``."""


class Heartbeat:
    """Writes the entry of one try of a run, and reads what is asked of it: :meth:`add` its commands to a pipeline, then
    :meth:`take` their answers.

    What is asked is read as a state, not as an event: it holds until somebody asks for something else, and a submitter
    that missed it finds it in the next round.
    """

    def __init__(self, figures: Figures, on_ask: Callable[[Asked, str], None], *, keep_ask: bool = False) -> None:
        """``on_ask(asked, by)`` is called whenever what is asked has changed.

        ``keep_ask``: obey what was asked of an earlier try. Else that is deleted, as its user started the run again.
        """
        self._figures = figures
        self._on_ask = on_ask
        self._keep_ask = keep_ask
        self._begun = False
        self._ask: tuple[str, str] = (Asked.NOTHING, "")

    def add(self, pipe: Any, run: str, now: float) -> None:
        """Add the commands of one round to a pipeline. ``now``: Redis's time, in seconds."""
        key = entry_key(run)
        pipe.hmget(key, "said", "ask", "asked_by")
        if not self._begun:
            if self._keep_ask:
                pipe.hdel(key, "ended", "ended_by", "exit_code")
            else:
                pipe.delete(key)
        pipe.hset(key, mapping={**self._figures(), "said": now})
        pipe.expire(key, LEFT_TTL_S)
        pipe.zadd(RUNS, {run: now})
        pipe.zremrangebyscore(RUNS, "-inf", now - LEFT_TTL_S)
        pipe.expire(RUNS, LEFT_TTL_S)
        if self._begun and self._ask[0]:
            # Where Redis has lost its memory, and with it what was asked.
            for name, value in zip(("ask", "asked_by"), self._ask, strict=True):
                pipe.hsetnx(key, name, value)

    def take(self, answers: Sequence[Any]) -> bool:
        """Read the answers to the commands of :meth:`add`, and call ``on_ask`` if what is asked has changed. Returns
        whether it has."""
        said, ask, by = answers[0]
        first, self._begun = not self._begun, True
        if said is None or (first and not self._keep_ask):
            return False
        asked = (ask or Asked.NOTHING, by or "")
        if asked[0] == self._ask[0]:
            return False
        self._ask = asked
        try:
            known = Asked(asked[0])
        except ValueError:  # of a later release
            return False
        self._on_ask(known, asked[1])
        return True


async def end_entry(
    client: Redis, run: str, fields: Mapping[str, str | int | float], *, keep_s: int, keep_ask: bool = False
) -> None:
    """Write the entry for a last time, to be kept for ``keep_s`` seconds. Raises redis.RedisError.

    ``keep_ask``: the next try must obey what was asked of this one (see :class:`Heartbeat`).
    """
    now = (await client.time())[0]
    values: dict[Any, Any] = {**fields, "said": now}
    async with client.pipeline(transaction=True) as pipe:
        pipe.hset(entry_key(run), mapping=values)
        if not keep_ask:
            pipe.hdel(entry_key(run), "ask", "asked_by")
        pipe.expire(entry_key(run), keep_s)
        pipe.zadd(RUNS, {run: now})
        pipe.expire(RUNS, LEFT_TTL_S)
        await pipe.execute()
