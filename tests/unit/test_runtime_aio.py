"""Ticks that the periodic work of an event loop shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brimful.runtime.aio import until_tick
from support.still_loop import StillLoop


class _Loop(StillLoop):
    def until_tick(self, every_s: float) -> float:
        async def ask() -> float:
            return until_tick(every_s)

        return self.run_until_complete(ask())


@pytest.fixture
def loop() -> Iterator[_Loop]:
    loop = _Loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("now", [0.0, 0.4995, 1.0, 77_000.123, 77_000.999])
def test_sleeps_of_seconds_end_together(loop: _Loop, now: float) -> None:
    loop.now = now
    tick = now + loop.until_tick(1.0)
    assert now < tick <= now + 1.005
    for every_s in (2.0, 3.0, 3600.0):
        assert now + loop.until_tick(every_s) == pytest.approx(tick + every_s - 1)
    assert now + loop.until_tick(2.4) in (pytest.approx(tick + 1), pytest.approx(tick + 2))
    assert now + loop.until_tick(2.4) <= now + 2.405


def test_short_sleeps_divide_the_second(loop: _Loop) -> None:
    loop.now = tick = loop.until_tick(1.0)
    for _ in range(4):
        loop.now += loop.until_tick(0.25)
    assert loop.now == pytest.approx(tick + 1)


@pytest.mark.parametrize("every_s", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("off_s", [-0.004, 0.0, 0.004])
def test_a_timer_that_fires_beside_its_tick_sleeps_to_the_next_one(loop: _Loop, every_s: float, off_s: float) -> None:
    tick = loop.until_tick(1.0)
    loop.now = tick + off_s
    assert loop.now + loop.until_tick(every_s) == pytest.approx(tick + every_s)
