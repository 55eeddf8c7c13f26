"""Rules of the admission's script, command by command: pauses, the slow start after them, the circuit breaker."""

from __future__ import annotations

import redis

from support.admission_script import Script, granted


def failures(script: Script, count: int) -> None:
    """Requests one after the other, each of which fails."""
    for _ in range(count):
        (ticket,) = script.ask()
        script.end(ticket, verdict=0)


def tripped(client: redis.Redis, breaker: int = 3, **limits: int) -> Script:
    """A fleet whose breaker has just tripped."""
    script = Script(client, breaker=breaker, **limits)
    failures(script, breaker)
    return script


class TestPause:
    def test_nothing_is_granted_until_it_ends(self, client: redis.Redis) -> None:
        script = Script(client)
        assert script.turn(pause=[700, "429"])["pause"] == [700, "429"]
        assert script.ask() == []
        reply = script.later(699).turn()
        assert (reply["pause"], granted(reply), reply["at"]) == ([1, "429"], [], script.now + 1)
        reply = script.later(1).turn()
        assert "pause" not in reply
        assert len(granted(reply)) == 1

    def test_it_ends_at_a_whole_millisecond(self, client: redis.Redis) -> None:
        script = Script(client)
        assert script.turn(pause=[700.4, "429"])["pause"] == [700, "429"]

    def test_a_shorter_one_neither_shortens_it_nor_renames_it(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[700, "long"])
        assert script.turn(pause=[700, "as long"])["pause"] == [700, "long"]
        assert script.later(100).turn(pause=[500, "short"])["pause"] == [600, "long"]
        assert script.turn(pause=[601, "longer"])["pause"] == [601, "longer"]

    def test_a_new_one_counts_from_its_own_time(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[700, "first"])
        script.later(5000).turn()
        assert script.turn(pause=[300, "second"])["pause"] == [300, "second"]
        assert script.later(299).ask() == []
        assert len(script.later(1).look()) == 1

    def test_its_end_is_announced_to_the_process_that_waits(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[700, "429"])
        end = script.now + 700
        assert script.later(10).turn(ask=[[script.ticket(), 0]])["at"] == end


class TestPauseUntilAccepted:
    def test_neither_a_refusal_nor_a_failure_ends_it(self, client: redis.Redis) -> None:
        script = Script(client)
        first, second, *_ = script.ask(count=6)
        assert granted(script.turn(busy=[700, "queue_full"], release=[[first, 0, -1, -1, 0]])) == []
        assert granted(script.later(10).end(second, verdict=0)) == []

    def test_the_first_accepted_one_ends_it_without_a_slow_start(self, client: redis.Redis) -> None:
        script = Script(client)
        first, second, *_ = script.ask(count=6)
        refusal = script.turn(busy=[700, "queue_full"], release=[[first, 0, -1, -1, 0]])
        assert (granted(refusal), refusal["at"]) == ([], script.now + 700)
        assert len(granted(script.later(10).end(second))) == 2

    def test_it_ends_in_time_and_with_a_slow_start_where_nothing_is_accepted(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(busy=[700, "queue_full"])
        assert script.ask(count=4) == []
        assert script.later(699).look() == []
        assert len(script.later(1).look()) == 1
        assert len(script.later(250).look()) == 1

    def test_the_longest_counts(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(busy=[700, "queue_full"])
        script.turn(busy=[300, "queue_full"])
        assert script.ask() == []
        assert script.later(699).look() == []
        assert len(script.later(1).look()) == 1

    def test_a_pause_beside_it_goes_on(self, client: redis.Redis) -> None:
        script = Script(client)
        (first,) = script.ask()
        reply = script.turn(busy=[700, "queue_full"], pause=[500, "rate_limited"], ask=[[script.ticket(), 0]])
        assert reply["pause"] == [500, "rate_limited"]
        assert granted(script.later(10).end(first)) == []
        assert script.later(489).look() == []
        assert len(script.later(1).look()) == 1


class TestSlowStart:
    def test_the_slots_are_filled_over_its_time(self, client: redis.Redis) -> None:
        """Four slots in 1,000 ms: one at once, and one more every 250 ms."""
        script = Script(client)
        script.turn(pause=[500, "429"])
        ended = script.now + 500
        assert script.ask(count=5) == []
        reply = script.later(500).turn()
        assert (len(granted(reply)), reply["at"]) == (1, ended + 250)
        assert len(script.later(249).look()) == 0
        reply = script.later(1).turn()
        assert (len(granted(reply)), reply["at"]) == (1, ended + 500)
        assert len(script.later(249).look()) == 0
        assert len(script.later(1).look()) == 1
        assert len(script.later(250).look()) == 1

    def test_what_nobody_took_is_there_later(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[500, "429"])
        assert len(script.later(500 + 510).ask(count=4)) == 3

    def test_it_ends(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[500, "429"])
        assert len(script.later(500 + 1000).ask(count=4)) == 4

    def test_it_does_not_end_a_moment_earlier(self, client: redis.Redis) -> None:
        script = Script(client, slots=2000)
        script.turn(pause=[500, "429"])
        assert len(script.later(500).ask(count=1)) == 1
        assert len(script.later(999).ask(count=2000)) == 1998
        assert len(script.later(1).look()) == 1

    def test_it_has_ended_also_if_its_time_is_made_longer(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[500, "429"])
        script.later(500 + 1000).ask()
        script.set_limits(ramp_ms=100_000)
        assert len(script.ask(count=3)) == 3

    def test_ended_requests_do_not_speed_it_up(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[500, "429"])
        first = script.later(500).ask(count=4)
        assert len(first) == 1
        assert granted(script.end(*first)) == []

    def test_a_second_pause_begins_it_again(self, client: redis.Redis) -> None:
        script = Script(client)
        script.turn(pause=[500, "429"])
        script.later(500).ask(count=4)
        assert len(script.later(250).look()) == 1
        script.turn(pause=[500, "429"])
        assert len(script.later(500).look()) == 1
        assert len(script.later(250).look()) == 1

    def test_without_its_time_there_is_none(self, client: redis.Redis) -> None:
        script = Script(client, ramp_ms=0)
        script.turn(pause=[500, "429"])
        assert len(script.later(500).ask(count=4)) == 4


class TestBreaker:
    def test_it_trips_on_as_many_failures_in_a_row(self, client: redis.Redis) -> None:
        script = Script(client, breaker=3)
        failures(script, 2)
        assert len(script.ask()) == 1, "two are not enough"
        script = tripped(client)
        assert script.ask() == []

    def test_a_success_between_them_starts_the_count_again(self, client: redis.Redis) -> None:
        script = Script(client, breaker=3)
        failures(script, 2)
        (ticket,) = script.ask()
        script.end(ticket)
        failures(script, 2)
        (ticket,) = script.ask()
        script.end(ticket, verdict=0)
        assert script.ask() == [], "the third after the success"

    def test_a_neutral_end_leaves_the_count(self, client: redis.Redis) -> None:
        script = Script(client, breaker=3)
        failures(script, 2)
        (ticket,) = script.ask()
        script.end(ticket, verdict=-1)
        (ticket,) = script.ask()
        script.end(ticket, verdict=0)
        assert script.ask() == []

    def test_zero_is_never(self, client: redis.Redis) -> None:
        script = Script(client, breaker=0)
        failures(script, 30)
        assert len(script.ask()) == 1

    def test_one_is_at_once(self, client: redis.Redis) -> None:
        assert tripped(client, breaker=1).ask() == []

    def test_one_probe_at_a_time(self, client: redis.Redis) -> None:
        script = tripped(client)
        reply = script.turn(ask=[[script.ticket(), 0] for _ in range(3)])
        assert (granted(reply), reply["at"]) == ([], script.now + 500)
        assert script.later(499).look() == []
        reply = script.later(1).turn()
        assert len(granted(reply)) == 1
        assert "at" not in reply
        assert script.later(3000).look() == []

    def test_probes_that_fail_follow_at_longer_and_longer_intervals(self, client: redis.Redis) -> None:
        script = tripped(client, lease_ms=100_000)
        script.ask(count=20)
        waits = []
        for _ in range(9):
            reply = script.turn()
            waits.append(reply["at"] - script.now)
            (probe,) = granted(script.later(waits[-1]).turn())
            assert script.later(20).look() == []
            script.end(probe, verdict=0)
        assert waits == [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]

    def test_a_request_from_before_is_no_probe(self, client: redis.Redis) -> None:
        script = Script(client, breaker=3)
        (old,) = script.ask()
        failures(script, 3)
        script.ask()
        (probe,) = script.later(500).look()
        script.end(old, verdict=0)
        assert script.ask() == []
        reply = script.end(probe, verdict=0)
        assert reply["at"] == script.now + 1000

    def test_a_probe_without_a_verdict_is_followed_by_another(self, client: redis.Redis) -> None:
        script = tripped(client)
        script.ask(count=2)
        (probe,) = script.later(500).look()
        assert len(granted(script.end(probe, verdict=-1))) == 1

    def test_a_probe_whose_process_died_is_followed_by_another(self, client: redis.Redis) -> None:
        script = tripped(client)
        script.turn("bb", ask=[[script.ticket("bb"), 0]])
        script.turn("bb")
        assert len(script.later(500).look("bb")) == 1
        assert script.ask() == []
        assert len(script.later(4000).look()) == 1

    def test_a_success_closes_it_with_a_slow_start(self, client: redis.Redis) -> None:
        script = tripped(client)
        script.ask(count=8)
        (probe,) = script.later(500).look()
        reply = script.end(probe)
        assert (len(granted(reply)), reply["at"]) == (1, script.now + 250)
        assert len(script.later(250).look()) == 1
        held = script.later(1000).look()
        assert len(held) == 2
        assert len(granted(script.end(*held, verdict=0))) == 2, "the count began again"

    def test_a_slow_start_does_not_delay_probes(self, client: redis.Redis) -> None:
        script = tripped(client, ramp_ms=100_000)
        script.ask(count=3)
        script.turn(pause=[500, "429"])
        (probe,) = script.later(500).look()
        script.end(probe, verdict=0)
        assert len(script.later(1000).look()) == 1

    def test_it_is_closed_when_the_operator_switches_it_off(self, client: redis.Redis) -> None:
        script = tripped(client)
        script.set_limits(breaker=0)
        assert len(script.ask(count=4)) == 4

    def test_the_first_interval_is_short_again_the_next_time(self, client: redis.Redis) -> None:
        script = tripped(client, ramp_ms=0)
        script.ask(count=30)
        for _ in range(3):
            (probe,) = script.later(script.turn()["at"] - script.now).look()
            script.end(probe, verdict=0)
        (probe,) = script.later(script.turn()["at"] - script.now).look()
        held = granted(script.end(probe))
        reply = script.end(*held[:3], verdict=0)
        assert reply["at"] == script.now + 500
