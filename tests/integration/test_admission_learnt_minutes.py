"""Minutes of keys whose limits are learnt, in simulated time: throughput beside that of the right number, and 429s."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import redis

from support.simulated_key import Provider, SimulatedKey


def test_unknown_slots_that_change_are_followed_although_each_429_names_a_time(client: redis.Redis) -> None:
    key = SimulatedKey(client, Provider([(0, 16), (60, 8), (120, 32)]), 170, slots=16, slots_auto=True, starts=None)
    for start, end, slots in ((30, 60, 16), (90, 120, 8), (150, 170, 32)):
        assert key.rate(start, end) >= 0.95 * slots
        assert key.most_refused(start, end) <= 2
        assert key.learnt[end - 1].get("slots", 16) in (slots, slots + 1)


@pytest.fixture(scope="module")
def right_rate(client: redis.Redis) -> Callable[[int], float]:
    """Answers a second after the first minute of a key with 60 starts, by latency, where that number is set."""

    @cache
    def rate(latency_ms: int) -> float:
        key = SimulatedKey(client, Provider([(0, 16)], [(0, 60)], latency_ms=latency_ms), 300, slots=16, starts=60)
        assert key.refused == []
        return key.rate(60, 300)

    return rate


@pytest.mark.parametrize(
    ("told", "retry_s", "latency_ms"),
    [(None, None, 14_000), (None, 0, 500), (70, None, 14_000), (120, None, 500), (120, 1, 14_000)],
)
def test_a_limit_on_starts_that_nobody_states_meets_a_429_a_minute(
    client: redis.Redis, right_rate: Callable[[int], float], told: int | None, retry_s: int | None, latency_ms: int
) -> None:
    """At the longer latency all slots are in use most of the time: starts are spread over the window."""
    provider = Provider(starts=[(0, 60)], retry_s=retry_s, latency_ms=latency_ms)
    key = SimulatedKey(client, provider, 310, slots=16, starts=told)
    assert key.rate(60, 300) >= 0.92 * right_rate(latency_ms)
    assert key.most_refused(60, 310) <= 2
    assert key.learnt[-1]["starts"] in range(58, 62)


@pytest.mark.parametrize("told", [None, 60])
def test_a_limit_on_starts_that_rises_or_falls_is_followed(client: redis.Redis, told: int | None) -> None:
    provider = Provider(starts=[(0, 20), (100, 40), (500, 20)], retry_s=0, latency_ms=500)
    key = SimulatedKey(client, provider, 640, slots=16, starts=told)
    assert key.rate(380, 500) >= 0.9 * 40 / 60
    assert key.learnt[-1]["starts"] in (20, 21)


def test_a_try_whose_answers_take_long_is_counted_in_the_window_of_its_starts(client: redis.Redis) -> None:
    provider = Provider(starts=[(0, 50), (100, 60)], retry_s=0, latency_ms=14_000)
    key = SimulatedKey(client, provider, 420, slots=16, starts=60)
    assert key.learnt[95] == {"starts": 50}
    assert key.learnt[-1].get("starts", 60) > 55


def test_refusals_without_a_name_that_are_random_cost_few_starts(client: redis.Redis) -> None:
    key = SimulatedKey(client, Provider(starts=[(0, 120)], latency_ms=500, noise=0.05), 240, slots=16, starts=150)
    assert key.rate(0, 240) >= 0.9 * 2
