"""Timeouts of exchanges with the provider, on a loop whose clock is moved by hand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from brimful_worker.provider.transport.exchange import HttpExchange, Timeouts
from support.still_loop import StillLoop


class _Transport:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


def started(timeouts: Timeouts) -> HttpExchange:
    exchange = HttpExchange(None, timeouts, None)
    exchange.start(cast("asyncio.Transport", _Transport()))
    return exchange


def test_each_exchange_ends_a_timeout_after_its_own_start() -> None:
    async def passed(seconds: float) -> None:
        loop.now += seconds
        for _ in range(3):  # the timer, then what it calls
            await asyncio.sleep(0)

    async def ends() -> list[Any]:
        timeouts = Timeouts(10.0)
        first = started(timeouts)
        await passed(4.0)
        second, answered = started(timeouts), started(timeouts)
        transports = [cast("_Transport", each.transport) for each in (first, second, answered)]
        assert (first.sent, first.reused) == (True, False)
        found = []
        for seconds in (5.5, 0.5, 0.5, 3.0, 0.5):
            await passed(seconds)
            if loop.now == 109.5:
                answered.finish()
            found.append((loop.now, *(transport.aborted for transport in transports)))
        third = started(timeouts)  # after the last one has ended, the timer is set again
        await passed(9.5)
        found.append(third.timed_out)
        await passed(0.5)
        assert [each.timed_out for each in (first, second, answered, third)] == [True, True, False, True]
        return found

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        loop = cast("StillLoop", runner.get_loop())
        loop.now = 100.0
        assert runner.run(ends()) == [
            (109.5, False, False, False),
            (110.0, True, False, False),
            (110.5, True, False, False),
            (113.5, True, False, False),
            (114.0, True, True, False),
            False,
        ]
