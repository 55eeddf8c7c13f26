"""Parts of the admission that need no server: policy, clock, waiters, outgoing messages, the script's header."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.config import Settings
from brimful.errors import UsageError
from brimful.names import Workload
from brimful.state.keys import ADMISSION, admission_keys
from brimful_worker.admission.policy import (
    GATHER_LONG_S,
    GATHER_MOST_S,
    PACE_BURST,
    PACE_FROM,
    PACE_S,
    Limits,
    Pace,
    Rules,
    gather_s,
    release_delay,
    wire_lag,
)
from brimful_worker.admission.turns import NO_FLOW
from brimful_worker.admission.waiters import WORKLOADS, Queue, Waiter, Waiters
from brimful_worker.admission.wire.outgoing import Outgoing
from brimful_worker.admission.wire.recent_starts import RecentStarts
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.round_trips import RoundTrips
from brimful_worker.admission.wire.rpc import exchange, exchange_arguments

LUA = resources.files("brimful_worker.admission").joinpath("lua")
LUA_NAMES = {
    "amounts": "token_amounts",
    "heard": "last_seen",
    "commands": "command_seq",
    "pushed": "grant_seq",
    "inbox": "pending_grants",
}
"""Keys that the script calls otherwise than Redis: their names in Redis cannot change."""


def header(section: str) -> str:
    """The comment lines of one section of the script's header."""
    text = LUA.joinpath("exchange.lua").read_text("utf-8")
    match = re.search(rf"^-- {section}\b[^:\n]*:(.*?)(?=^-- [A-Z][A-Za-z]+:|^[^-]|^$)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no {section} in the header"
    return match[1]


@pytest.fixture
def fresh_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class TestScript:
    keys = tuple(LUA_NAMES.get(name, name) for name in ADMISSION)

    def test_the_header_lists_the_keys_that_are_passed(self) -> None:
        listed = re.findall(r"(\d+) (\w+)", header("KEYS"))
        assert [(int(number), name) for number, name in listed] == list(enumerate(self.keys, 1))

    def test_each_key_is_bound_by_name_and_used(self) -> None:
        text = exchange().text
        assert [int(number) for number in re.findall(r"KEYS\[(\d+)\]", text)] == list(range(1, len(ADMISSION) + 1))
        bound = re.findall(r"(\w+)_key", "\n".join(line for line in text.splitlines() if "KEYS[" in line))
        assert bound == list(self.keys)
        for name in self.keys:
            assert text.count(f"{name}_key") > 1, name

    def test_arguments_are_bound_to_the_names_in_the_header(self) -> None:
        text = exchange().text
        listed = [name for _, name in re.findall(r"--\s+(\d+) (\w+)", header("ARGV"))]
        assert re.search(rf"^local {', '.join(listed)} = cjson.decode\(ARGV\[1\]\), ARGV\[2\], ARGV\[3\]$", text, re.M)
        assert f"ARGV[{len(listed) + 1}]" not in text

    def test_the_header_lists_each_message_field(self) -> None:
        text = exchange().text
        used = set(re.findall(r"\bmessage\.(\w+)", text)) | set(re.findall(r"\breported\.(\w+)", text))
        assert {field for field in used if not re.search(rf"\b{field}\b", header("Message"))} == set()

    def test_the_header_lists_each_reply_field(self) -> None:
        used = set(re.findall(r"\breply\.(\w+)", exchange().text))
        assert {field for field in used if not re.search(rf"\b{field}\b", header("Returns"))} == set()

    def test_no_key_is_built_in_lua(self) -> None:
        assert "brimful:" not in exchange().text

    def test_all_keys_carry_one_hash_tag(self) -> None:
        count, *names, message, prefix, everyone = exchange_arguments("abc", b"{}")
        assert (count, message) == (len(ADMISSION), b"{}")
        for name in (*names, *admission_keys("abc").values(), prefix, everyone):
            assert re.findall(r"\{(.*?)\}", name) == ["abc"]

    def test_includes_are_replaced(self) -> None:
        assert "--#include" not in exchange().text
        assert len(exchange().sha) == 40

    def test_the_fallback_limits_are_the_default_limits(self) -> None:
        (table,) = re.findall(r"^local FALLBACK = \{(.*?)^\}", exchange().text, re.MULTILINE | re.DOTALL)
        assert {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", table)} == Limits().fields()


class TestPolicy:
    def test_limits_from_settings(self) -> None:
        limits = Limits.from_settings(Settings(slots=3, starts=0, window_s=10))
        assert (limits.slots, limits.starts, limits.window_s) == (3, None, 10)
        assert limits.guard_s == pytest.approx(0.3)
        assert limits.fields()["starts"] == 0
        assert all(isinstance(value, int) for value in limits.fields().values())

    def test_limits_come_back_from_redis_as_they_went(self) -> None:
        limits = Limits(slots=5, window_s=1.5, starvation_s=3, circuit_breaker=7, slow_start_s=0.25, tokens=9, budget=8)
        rules = Rules.from_fields(limits.fields(), cooldown_s=limits.cooldown_s)
        assert all(getattr(rules, name) == getattr(limits, name) for name in Limits.__dataclass_fields__)

    def test_a_limit_out_of_range_is_named(self) -> None:
        with pytest.raises(UsageError, match="slots = 0"):
            Limits(slots=0).fields()

    def test_the_guard_is_shared_by_the_process_and_the_network(self) -> None:
        assert wire_lag(0.8) == pytest.approx(0.4)
        assert wire_lag(0.3) == pytest.approx(0.1)
        assert wire_lag(0) == 0

    @given(st.floats(0, 100))
    def test_the_network_gets_at_least_half_of_the_guard(self, guard_s: float) -> None:
        assert 0 <= wire_lag(guard_s) <= guard_s / 2

    def test_the_cooldown_ends_before_the_lease_ends_in_redis(self) -> None:
        assert Rules(lease_s=8, cooldown_s=1).local_lease_s == pytest.approx(8 - 1.25)
        assert Rules(lease_s=2, cooldown_s=5).local_lease_s == 1

    @pytest.mark.parametrize(("request_s", "delay"), [(0.1, 0.005), (1.2, 0.012), (5.0, 0.02)])
    def test_the_release_delay_is_a_hundredth_of_the_request(self, request_s: float, delay: float) -> None:
        assert release_delay(0.02, request_s) == pytest.approx(delay)
        assert release_delay(0, request_s) == 0

    def test_few_waiters_are_registered(self) -> None:
        assert Rules(slots=16).registered == 32
        assert Rules(slots=100_000).registered == 4096
        assert Rules().heartbeat_s < Rules().lease_s / 2 < Rules().idle_s

    @pytest.mark.parametrize(("held", "seconds"), [(0, 0.0), (16, 0.0), (99, 0.0), (500, 0.005), (5000, GATHER_MOST_S)])
    def test_only_a_process_that_holds_much_waits_between_commands(self, held: int, seconds: float) -> None:
        assert gather_s(held) == pytest.approx(seconds)

    @pytest.mark.parametrize(
        ("held", "lasting_s", "seconds"),
        [
            (100, 20.0, 0.001),
            (500, 0.4, 0.005),
            (500, 4.0, 0.02),
            (2000, 20.0, GATHER_LONG_S),
            (2000, 600.0, GATHER_LONG_S),
        ],
    )
    def test_long_requests_let_more_go_together(self, held: int, lasting_s: float, seconds: float) -> None:
        assert gather_s(held, lasting_s) == pytest.approx(seconds)
        pace = Pace()
        pace.sent(100.0)
        assert pace.wait_s(100.0, held, lasting_s=lasting_s) == pytest.approx(seconds)

    def test_few_commands_go_at_once_and_many_go_together(self) -> None:
        pace, now, sent = Pace(), 100.0, []
        for _ in range(50):
            now += pace.wait_s(now)
            pace.sent(now)
            sent.append(now - 100)
        assert sent[:PACE_BURST] == [0.0] * PACE_BURST
        assert sent[-1] == pytest.approx((49 - PACE_BURST) * PACE_S)
        assert pace.wait_s(now) > 0 == pace.wait_s(now + 1) == pace.wait_s(now, 0, PACE_FROM - 1)
        assert pace.wait_s(now + 1, held=500) == 0
        pace = Pace()
        pace.sent(now)
        assert pace.wait_s(now, held=500) == pytest.approx(0.005)


class TestClock:
    def test_deadlines_are_never_later_than_true(self) -> None:
        clock = RedisClock()
        # Redis's clock is this one + 1000 s; commands take from 5 to 100 ms to Redis.
        for sent, early in ((1.0, 0.1), (2.0, 0.005), (3.0, 0.09)):
            clock.note(sent, sent + 0.2, int((1000 + sent + early) * 1000))
        true = 4.0
        assert true - 0.006 <= clock.not_after((1000 + true) * 1000) <= true

    @given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=40))
    def test_whatever_the_network_does(self, commands: list[tuple[float, float]]) -> None:
        clock, at = RedisClock(), 0.0
        for there, back in commands:
            clock.note(at, at + there + back, int((at + there) * 1000))
            at += there + back
        assert clock.not_after(at * 1000) <= at + 0.001 + 1e-9

    def test_the_bound_allows_a_slow_network_and_no_step(self) -> None:
        clock = RedisClock()
        assert clock.bound_ms(1.0) is None
        clock.note(1.0, 1.3, 50_000)
        clock.note(1.5, 1.8, 50_700)
        bound = clock.bound_ms(2.0)
        assert bound is not None
        assert 51_400 <= bound < 51_500  # the slowest of those before was 200 ms slower than the fastest
        assert not clock.stepped(4.0, 53_400)  # it was sent at 2.0 and carried out at 4.0
        assert clock.stepped(4.0, 53_600)
        assert clock.bound_ms(2.0, stepped=True) == 51_000, "as the fastest of those before"
        clock.reset()
        assert clock.bound_ms(3.0) is None

    def test_a_clock_that_was_stepped_back_does_not_regain_the_time(self) -> None:
        clock = RedisClock()
        clock.note(1.0, 1.01, 51_000)
        clock.note(2.0, 2.01, 52_000)
        clock.note(8.0, 8.01, 53_000)  # five seconds are lost
        assert clock.bound_ms(9.0) == 54_255

    def test_the_least_that_it_can_show_allows_a_slow_network_and_a_drift(self) -> None:
        clock = RedisClock()
        assert clock.least_ms(1.0) is None
        clock.note(1.0, 1.3, 50_000)
        clock.note(1.5, 1.6, 50_550)
        assert clock.least_ms(1.5) == pytest.approx(50_448, abs=1)  # the second was 100 ms old at most; a tick
        assert clock.least_ms(3.5) == pytest.approx(52_438, abs=1)  # and 5 ms a second
        clock.note(8.0, 8.01, 53_000)  # time is lost: the readings before are of no use
        assert clock.least_ms(8.0) == pytest.approx(52_988, abs=1)
        clock.reset()
        assert clock.least_ms(9.0) is None

    def test_how_long_a_reading_stands(self) -> None:
        clock = RedisClock()
        assert clock.waited(1.0) is None
        clock.note_frozen(0.5, 1.0, {"now": 50_000, "real": 70_000, "clock": "c"})
        clock.note_frozen(1.1, 1.5, {"now": 50_000, "real": 70_600, "clock": "c"})
        assert clock.waited(2.5) == (50_000, 1500, "c", 72_260)
        clock.note_frozen(2.0, 2.5, {"now": 51_000, "real": 72_000})  # somebody has spoken
        assert clock.waited(3.0) == (51_000, 500, "", 73_255)
        clock.note(3.0, 3.1, 52_000)
        assert clock.waited(4.0) is None


class TestWaiters:
    @pytest.fixture
    def loop(self, fresh_loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        return fresh_loop

    def add(self, waiters: Waiters, loop: asyncio.AbstractEventLoop, since: float, workload: str = "batch") -> Waiter:
        return waiters.add(WORKLOADS[Workload(workload)], NO_FLOW, 7, since, loop.create_future())

    def test_the_oldest_few_are_registered(self, loop: Any) -> None:
        waiters = Waiters("abc")
        many = [self.add(waiters, loop, float(i)) for i in range(10)]
        assert waiters.wants_registering(Queue.BATCH, 4)
        assert waiters.register(4) == many[:4]
        assert not waiters.wants_registering(Queue.BATCH, 4)
        assert waiters.count(Queue.BATCH) == 10
        assert waiters.behind(Queue.BATCH) == 6
        assert [waiters.pop(waiter.id) for waiter in many[:2]] == many[:2]
        assert waiters.wants_registering(Queue.BATCH, 4)
        assert waiters.register(4) == many[4:6]
        assert many[0].id == "abc.b.000000001.7"

    def test_one_that_has_waited_longer_goes_to_the_front(self, loop: Any) -> None:
        waiters = Waiters("abc")
        self.add(waiters, loop, 5.0)
        again = self.add(waiters, loop, 1.0)
        assert waiters.register(1) == [again]

    def test_cancelled_ones_are_removed(self, loop: Any) -> None:
        waiters = Waiters("abc")
        first, second, third = (self.add(waiters, loop, float(i)) for i in range(3))
        waiters.register(1)
        for waiter, known in ((first, True), (second, False)):
            waiter.future.cancel()
            assert waiters.cancel(waiter) is known
        assert waiters.count(Queue.BATCH) == 1
        assert waiters.register(5) == [third]
        assert waiters.pop(second.id) is None
        assert waiters.count(Queue.BATCH) == 1

    def test_one_that_is_granted_after_its_cancellation(self, loop: Any) -> None:
        waiters = Waiters("abc")
        waiter = self.add(waiters, loop, 1.0)
        waiters.register(5)
        waiter.future.cancel()
        assert waiters.pop(waiter.id) is waiter
        assert waiters.cancel(waiter) is False
        assert not waiters

    def test_one_that_is_cancelled_while_others_are_registered(self, loop: Any) -> None:
        waiters = Waiters("abc")
        gone, here = self.add(waiters, loop, 0.0), self.add(waiters, loop, 1.0)
        gone.future.cancel()
        assert waiters.register(2) == [here]
        assert waiters.cancel(gone) is False

    def test_each_queue_is_registered_by_itself(self, loop: Any) -> None:
        waiters = Waiters("abc")
        batch = [self.add(waiters, loop, float(i)) for i in range(3)]
        interactive = [self.add(waiters, loop, float(i), "interactive") for i in range(3)]
        assert waiters.register(2) == [*interactive[:2], *batch[:2]]
        assert len(waiters.drain()) == 6
        assert not waiters

    def test_draining_leaves_out_those_that_are_done(self, loop: Any) -> None:
        waiters = Waiters("abc")
        gone, here = self.add(waiters, loop, 0.0), self.add(waiters, loop, 0.0)
        waiters.register(2)
        gone.future.cancel()
        assert waiters.drain() == [here]


def test_outgoing_is_taken_whole_and_put_back_whole() -> None:
    outgoing = Outgoing()
    assert not outgoing
    outgoing.releases.append(["a", 0, 1, -1, 0])
    outgoing.add_pause((100, "short"))
    outgoing.add_busy((700, "until one is accepted"))
    assert outgoing.fields()["busy"] == (700, "until one is accepted")
    taken = outgoing.take()
    assert not outgoing
    outgoing.releases.append(["b", 0, 1, -1, 0])
    outgoing.add_pause((500, "long"))
    outgoing.add_busy((300, "shorter"))
    outgoing.put_back(taken)
    assert [release[0] for release in outgoing.releases] == ["a", "b"]
    assert outgoing.pause == (500, "long")
    assert outgoing.busy == (700, "until one is accepted")


def test_recent_starts_keep_the_window_and_a_little() -> None:
    starts = RecentStarts()
    for i in range(100):
        starts.add(f"t{i}", float(i), 5)
    starts.set_tokens("t99", 2)
    starts.drop("t98")
    starts.trim(100.0, 10.0)
    ages = starts.ages(100.0)
    assert ages[-1] == ("t99", 1000, 2)
    assert ages[0][1] <= 25_000
    assert len(ages) == 24
    for i in range(25_000):
        starts.add(f"u{i}", 100.0, 0)
    assert len(starts.ages(100.0)) == 20_000


def test_a_start_that_counts_from_a_later_time_has_a_negative_age() -> None:
    starts = RecentStarts()
    starts.add("t", 100.25, 0)
    assert starts.ages(100.0) == [("t", -250, 0)]


class TestRoundTrips:
    @staticmethod
    def trips(*seconds: float, **limits: float) -> RoundTrips:
        trips = RoundTrips()
        for each in seconds:
            trips.note(each, each)
        trips.update(Rules(**limits))  # type: ignore[arg-type]
        return trips

    def test_near_redis_no_start_counts_longer(self) -> None:
        assert self.trips(*[0.02] * 10, window_s=1).lag_ms == 0
        assert self.trips(*[0.19] * 10, window_s=60).lag_ms == 0

    def test_far_away_a_start_counts_for_what_its_arrival_takes(self) -> None:
        trips = self.trips(*[0.1] * 10, window_s=1)
        assert trips.rtt_ms == 100
        assert 65 <= trips.lag_ms <= 82  # 100 ms less half of what a guard of 0.21 s leaves to the process

    def test_one_slow_reply_of_many_changes_nothing(self) -> None:
        assert self.trips(*[0.01] * 29, 1.5, 1.5, window_s=1).lag_ms == 0

    def test_the_lag_is_at_most_a_quarter_of_the_lease(self) -> None:
        assert self.trips(*[5.0] * 10, window_s=1, lease_s=4).lag_ms <= 1250

    def test_it_comes_down_when_redis_is_near_again(self) -> None:
        trips = self.trips(*[0.3] * 32, window_s=1)
        for _ in range(32):
            trips.note(0.01, 0.01)
        trips.update(Rules(window_s=1))
        assert (trips.rtt_ms, trips.lag_ms) == (10, 0)
