"""Rules of the admission's script, command by command: a limit that is switched on counts what was used without it."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.admission_script import Script

WINDOW = 5500
"""Window and guard."""
SLICE = 1936
"""Starts without a limit are counted by the slice of time in which they were: 31 of a minute, and one more."""


def fleet(client: redis.Redis, **limits: int) -> Script:
    """One process, more slots than it needs, at the beginning of a slice."""
    script = Script(client, **{"slots": 100, "lease_ms": 10_000_000, **limits})
    script.now = 600 * SLICE
    return script


class TestStarts:
    def test_each_slice_counts_until_its_last_start_leaves_the_window(self, client: redis.Redis) -> None:
        script = fleet(client)
        begun = script.now
        script.ask(count=2)
        script.later(SLICE - 1).ask(count=3)
        script.later(1).ask(count=1)
        script.set_limits(starts=8)
        reply = script.later(100).turn()
        assert reply["used"] == 6
        assert sorted(script.starts().values()) == [begun + SLICE - 1] * 5 + [begun + SLICE]
        assert len(script.ask(count=9)) == 2
        script.now = begun + SLICE - 1 + WINDOW
        assert script.turn()["used"] == 8, "five have left, and as many came"

    def test_they_are_counted_once(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(count=3)
        script.set_limits(starts=9)
        script.turn()
        assert script.turn()["used"] == 3
        script.set_limits(starts=0)
        script.turn()
        assert script.turn()["used"] == 0
        script.later(10).ask(count=2)
        script.set_limits(starts=9)
        assert script.turn()["used"] == 5

    def test_a_limit_that_is_raised_soon_after_counts_all_of_them(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(count=20)
        script.set_limits(starts=3)
        assert script.ask() == []
        script.set_limits(starts=25)
        assert len(script.ask(count=9)) == 5

    def test_of_very_many_the_latest(self, client: redis.Redis) -> None:
        script = fleet(client, slots=100_000)
        for after in (0, SLICE):
            script.later(after)
            for _ in range(3):
                script.ask(count=2000)
        script.set_limits(starts=1)
        assert script.turn()["used"] == 10_000
        assert list(script.starts().values()).count(script.now) == 6000

    def test_a_start_without_a_slot_counts(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(queue="s", count=2)
        script.set_limits(starts=9)
        assert script.turn()["used"] == 2

    def test_of_a_longer_window_the_part_that_is_not_known_counts_as_full(self, client: redis.Redis) -> None:
        script = fleet(client)
        begun = script.now
        script.ask(count=5)
        script.later(32 * SLICE).ask()
        script.set_limits(starts=3, window_ms=120_000)
        reply = script.turn(ask=[[script.ticket(), 0]])
        assert (reply["used"], reply["at"]) == (4, begun + 120_500)
        assert sorted(script.starts().values()) == [begun] * 3 + [script.now]

    def test_a_slice_is_used_again_a_minute_later(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(count=5)
        script.later(32 * SLICE).ask(count=2)
        script.set_limits(starts=9)
        assert script.turn()["used"] == 2

    def test_at_the_end_of_a_slice_it_is_still_the_same(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(count=5)
        script.later(SLICE - 1).ask(count=2)
        script.set_limits(starts=9)
        assert script.turn()["used"] == 7

    def test_nothing_is_noted_where_both_are_limited(self, client: redis.Redis) -> None:
        script = fleet(client, starts=50, tokens=1000)
        script.ask(count=3, tokens=10)
        state: Any = script.client.hgetall(script.keys["state"])
        assert [field for field in state if field.startswith("slice")] == []

    def test_beside_a_limit_on_tokens(self, client: redis.Redis) -> None:
        script = fleet(client, tokens=1000)
        script.ask(count=3, tokens=10)
        script.set_limits(starts=4)
        assert script.turn()["used"] == 3

    def test_a_longer_window_has_longer_slices(self, client: redis.Redis) -> None:
        script = fleet(client, window_ms=309_500)
        script.now = 200 * 10_000
        script.ask(count=1)
        script.later(9_999).ask(count=1)
        script.set_limits(starts=9)
        script.turn()
        assert list(script.starts().values()) == [script.now] * 2


class TestTokens:
    def test_they_count_until_they_leave_the_window(self, client: redis.Redis) -> None:
        script = fleet(client)
        used = script.now
        script.ask(tokens=60)
        script.set_limits(tokens=100)
        reply = script.later(10).turn(ask=[[script.ticket(tokens=41), 0]])
        assert reply["at"] == used + WINDOW
        script.turn(cancel=list(script.waiting()))
        assert len(script.ask(tokens=40)) == 1
        assert script.ask(tokens=1) == []

    def test_those_of_a_start_without_a_slot_do_not(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(tokens=100, queue="s")
        script.set_limits(tokens=100)
        assert len(script.ask(tokens=100)) == 1

    def test_beside_a_limit_on_starts(self, client: redis.Redis) -> None:
        script = fleet(client, starts=50)
        script.ask(tokens=60)
        script.set_limits(tokens=100)
        assert script.ask(tokens=41) == []
        assert script.turn()["used"] == 1

    def test_of_a_longer_window_the_part_that_is_not_known_counts_as_full(self, client: redis.Redis) -> None:
        script = fleet(client)
        begun = script.now
        script.ask(tokens=1)
        script.later(32 * SLICE).ask(tokens=10)
        script.set_limits(tokens=100, window_ms=120_000)
        reply = script.turn(ask=[[script.ticket(tokens=1), 0]])
        assert reply["at"] == begun + 120_500

    def test_they_are_counted_once(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(tokens=60)
        script.set_limits(tokens=100)
        script.turn()
        script.turn()
        assert len(script.ask(tokens=40)) == 1
        script.later(WINDOW).turn()
        assert len(script.ask(tokens=100)) == 1

    def test_also_when_the_limit_is_switched_off_between(self, client: redis.Redis) -> None:
        script = fleet(client)
        for limit, used in ((0, 60), (100, 0), (0, 10), (100, 30)):
            script.set_limits(tokens=limit)
            assert len(script.later(1).ask(tokens=used)) == 1
        assert script.ask(tokens=1) == []

    @pytest.mark.parametrize("place", [0, 31])
    def test_those_of_all_slices_count(self, client: redis.Redis, place: int) -> None:
        script = fleet(client)
        script.now += (32 - 600 % 32 + place) * SLICE
        script.ask(tokens=60)
        script.set_limits(tokens=100, starts=9)
        assert script.ask(tokens=41) == []
        assert script.turn()["used"] == 1

    def test_a_slice_is_used_again_a_minute_later(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(tokens=70)
        script.later(32 * SLICE).ask(tokens=60)
        script.set_limits(tokens=100)
        assert len(script.ask(tokens=40)) == 1
        assert script.ask(tokens=1) == []
