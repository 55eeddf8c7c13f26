"""The rates of a run and its time to go: runs are simulated, and the forecast is compared with what happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brimful.packing.units import DriveStatus
from brimful.run.display.forecast import Forecast
from brimful.run.display.progress import Progress
from support.runs import fleet

TICK_S = 0.5


def _at(second: float, done: float, total: int | None = 6000, **more: Any) -> Progress:
    return Progress(second, total or 0, total, int(done), 0, int(done), int(done), int(done) * 10, **more)


def _forecasts(done_at: Callable[[float], float], until: float, **more: Any) -> dict[float, float | None]:
    """Seconds left by time, of a run that is shown every tick."""
    forecast = Forecast()
    ticks = [place * TICK_S for place in range(int(until / TICK_S) + 1)]
    return {second: forecast.update(_at(second, done_at(second), **more))[1] for second in ticks}


def test_at_a_steady_rate_it_falls_with_the_clock() -> None:
    left = _forecasts(lambda second: 20 * second, 290)
    assert left[0] is None
    for second in (10, 60, 120, 200, 290):
        assert left[second] == pytest.approx(300 - second, rel=0.02)
    values = [value for value in left.values() if value is not None]
    assert all(later < earlier for earlier, later in itertools.pairwise(values))


def test_it_falls_when_the_run_gets_faster_and_rises_when_it_gets_slower() -> None:
    faster = _forecasts(lambda second: 10 * second + max(0.0, second - 60) * 30, 120)
    slower = _forecasts(lambda second: 40 * second - max(0.0, second - 60) * 30, 120)
    before, after = faster[60], faster[120]
    assert before == pytest.approx(540, rel=0.05)
    assert after == pytest.approx((6000 - 3000) / 40, rel=0.25)
    before, after = slower[60], slower[120]
    assert before == pytest.approx(90, rel=0.05)
    assert after == pytest.approx((6000 - 3000) / 10, rel=0.4)
    rising = [slower[second] for second in (66, 75, 90, 120)]
    assert rising == sorted(rising)  # type: ignore[type-var]


def test_packs_that_arrive_at_once_do_not_shake_it() -> None:
    left = _forecasts(lambda second: second // 6 * 120, 250)
    for second, value in left.items():
        if second >= 60:
            assert value == pytest.approx(300 - second, rel=0.2, abs=12)


def test_a_run_that_stands_still_has_a_forecast_that_grows() -> None:
    left = _forecasts(lambda second: 20 * min(second, 30), 90)
    values = [left[second] for second in (35, 50, 70, 90)]
    assert None not in values
    assert values == sorted(values)  # type: ignore[type-var]


def test_rollouts_a_minute_are_those_of_the_last_half_minute() -> None:
    forecast = Forecast()
    for place in range(241):
        rate, _ = forecast.update(_at(place * TICK_S, min(place * TICK_S, 60) * 20))
        if place == 120:
            assert rate == pytest.approx(1200, rel=0.01)
    assert rate < 200


def test_a_window_that_is_steadily_full_lets_it_fall_every_second() -> None:
    """600 starts a minute, evenly: the window frees one every tenth of a second."""
    forecast, left = Forecast(), []
    for second in range(60, 180):
        status = fleet(slots_used=16, starts_used=600, next_start_s=0.1)
        left.append(forecast.update(_at(second, 10 * second, total=3000), status)[1])
    for place, value in enumerate(left):
        assert value == pytest.approx(300 - 60 - place, abs=4)
    pairs = itertools.pairwise(left)
    assert all(later < earlier for earlier, later in pairs)  # type: ignore[operator]


def test_a_window_that_was_filled_in_a_burst_is_filled_so_again() -> None:
    forecast = Forecast()
    forecast.update(_at(10, 600, total=2000))
    full = fleet(slots_used=0, starts_used=600, waiting=40, next_start_s=12.4)
    later = replace(full, next_start_s=2.4)
    # 600 in 12 s, 600 a window later, and the last 200.
    assert Forecast().update(_at(50, 600, total=2000), full)[1] == pytest.approx(12.4 + 2 * 60)
    forecast.update(_at(50, 600, total=2000), full)
    assert forecast.update(_at(60, 600, total=2000), later)[1] == pytest.approx(2.4 + 2 * 60, abs=1)
    packed = _at(50, 600, total=2000, drive=DriveStatus(pack=100))
    assert Forecast().update(packed, full)[1] == 12.4


def test_retries_take_starts_too() -> None:
    full = fleet(slots_used=0, starts_used=600, next_start_s=0.0)
    drive = DriveStatus(requests=100, attempts=100)
    plain = Forecast().update(_at(50, 600, total=1200, drive=drive), full)[1]
    retried = Forecast().update(_at(50, 600, total=1200, drive=replace(drive, attempts=200)), full)[1]
    assert (plain, retried) == (60, 120)


def test_a_budget_that_ends_before_the_input_decides() -> None:
    left = _forecasts(lambda second: 20 * second, 40, budget=12_000)
    assert left[40] == pytest.approx(60 - 40, rel=0.02)  # 200 tokens a second
    forecast = Forecast()
    for second in range(41):
        _, in_money = forecast.update(_at(second, 20 * second, cost=second / 100, money=0.5))
    assert in_money == pytest.approx(50 - 40, rel=0.02)
    assert _forecasts(lambda second: 20 * second, 40, total=None, budget=12_000)[40] == pytest.approx(20, rel=0.02)
    assert _forecasts(lambda second: 20 * second, 40, total=None)[40] is None


def test_only_what_is_asked_again_is_left_of_a_run_that_retries() -> None:
    progress = Progress(0, 100, 100, 60, 40, 60, 0, 0, pending=40)
    assert progress.done == 60
    forecast = Forecast()
    for second in range(11):
        _, left = forecast.update(
            replace(progress, seconds=second, succeeded=60 + second, failed=40 - second, pending=40 - second)
        )
    assert left == pytest.approx(30, rel=0.02)


def test_nothing_is_left_at_the_end() -> None:
    assert _forecasts(lambda second: min(6000, 200 * second), 40)[40] is None
