"""Parts of the conversation with Redis that need no server: what is kept of its replies, what the next command says.

Times are the test's own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from redis.exceptions import ResponseError

from brimful.limits import describe_cost
from brimful_worker.admission import Lease
from brimful_worker.admission.lease import Refused
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits, Rules, WindowUse
from brimful_worker.admission.wire import eviction as eviction_module
from brimful_worker.admission.wire import outgoing as outgoing_module
from brimful_worker.admission.wire import redis_clock as redis_clock_module
from brimful_worker.admission.wire.eviction import EvictionWatch
from brimful_worker.admission.wire.fleet_view import FleetView
from brimful_worker.admission.wire.learnt import Learnt
from brimful_worker.admission.wire.outgoing import Outgoing
from brimful_worker.admission.wire.pending_grants import PendingGrants
from brimful_worker.admission.wire.recent_starts import RecentStarts
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.round_trips import RoundTrips, lag_step, oldest
from brimful_worker.liveness.watchdog import Watchdog
from support.boot_clock import BootClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    return BootClock(100.0).used_by(monkeypatch, eviction_module, outgoing_module, redis_clock_module)


def same_clock() -> RedisClock:
    """Redis's clock equals the process's."""
    clock = RedisClock()
    clock.note(100.0, 100.0, 100_000)
    return clock


class TestEviction:
    info = b"# Memory\r\nmaxmemory:1000\r\nmaxmemory_policy:%s\r\n"

    @pytest.fixture
    def watch(self, clock: BootClock) -> EvictionWatch:
        return EvictionWatch()

    async def look(self, watch: EvictionWatch, answer: bytes | Exception) -> None:
        async def call(*command: str) -> bytes:
            assert command == ("INFO", "memory")
            if isinstance(answer, Exception):
                raise answer
            return answer

        await watch.look(call)

    async def test_it_looks_at_once_and_then_every_minute(self, watch: EvictionWatch, clock: BootClock) -> None:
        clock.now = 0.0
        assert watch.due
        await self.look(watch, self.info % b"noeviction")
        clock.now = 59.9
        assert not watch.due
        clock.now = 60.0
        assert watch.due

    async def test_more_often_while_the_server_evicts(self, watch: EvictionWatch, clock: BootClock) -> None:
        await self.look(watch, self.info % b"allkeys-lru")
        clock.now += 4.9
        assert not watch.due
        clock.now += 0.1
        assert watch.due

    async def test_each_look_that_finds_a_fault_pauses_once(self, watch: EvictionWatch) -> None:
        assert watch.pause(6.0) is None
        await self.look(watch, self.info % b"noeviction")
        assert watch.pause(6.0) is None
        for _ in range(2):
            await self.look(watch, self.info % b"allkeys-lru")
            assert watch.fault is not None
            assert watch.fault.startswith("Redis may evict keys: maxmemory-policy allkeys-lru: ")
            assert watch.pause(6.0) == (16_000, watch.fault)
            assert watch.pause(6.0) is None

    @pytest.mark.parametrize("answer", [ResponseError("NOPERM"), b"# Memory\r\nused_memory:1\r\n"])
    async def test_a_policy_that_is_not_reported_stops_nothing(
        self, watch: EvictionWatch, caplog: pytest.LogCaptureFixture, answer: bytes | Exception
    ) -> None:
        for _ in range(2):
            await self.look(watch, answer)
            assert (watch.fault, watch.pause(6.0)) == (None, None)
        (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert record.levelno == logging.WARNING
        assert "cannot be checked" in record.getMessage()

    async def test_the_log_says_when_it_begins_and_ends(
        self, watch: EvictionWatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for policy in (b"allkeys-lru", b"allkeys-lru", b"noeviction", b"noeviction", b"allkeys-lru"):
            await self.look(watch, self.info % policy)
        error, warning = logging.ERROR, logging.WARNING
        assert [record.levelno for record in caplog.records] == [error, warning, error]
        assert "nothing starts until then" in caplog.messages[0]
        assert "evicts no keys any more" in caplog.messages[1]


class TestFleetView:
    reply: ClassVar[dict[str, Any]] = {
        "now": 99_000,
        "alive": 3,
        "used": 7,
        "tokens_used": 40,
        "spent": 900,
        "lag_most": 25,
        "learners": {"slots": "a"},
    }

    def test_nothing_is_known_before_the_first_reply(self) -> None:
        view = FleetView()
        assert view.join_fields(100.0) == {}
        assert view.window(Rules(starts=None, window_s=5, guard_s=1)) == WindowUse(0, 0, 0, 0, 6)

    def test_what_a_reply_brought_is_what_a_join_says(self) -> None:
        view = FleetView()
        view.overrides = {"slots": 3}
        view.learn(self.reply, same_clock())
        assert view.learn_members({"members": [4, ["a", "b"]], "lag_most": 20})
        assert view.join_fields(100.5) == {
            "alive": 3,
            "used": 7,
            "used_age_ms": 1498,
            "members": ["a", "b"],
            "learners": (99_000, 1500, {"slots": "a"}),
            "overrides": {"slots": 3},
            "spent": 900,
            "lag_most": 25,
        }
        assert view.join_fields(99.0)["used_age_ms"] == 0
        assert view.window(Rules(starts=600, tokens=50, window_s=5, guard_s=1)) == WindowUse(600, 7, 50, 40, 6)

    def test_a_reply_during_a_rebuild_takes_nothing_away(self) -> None:
        view, clock = FleetView(), same_clock()
        view.learn(self.reply, clock)
        before = view.join_fields(100.0)
        view.learn({"now": 99_500, "used": 0}, clock)
        assert view.join_fields(100.0) == before
        assert view.window(Rules(starts=600, window_s=5, guard_s=1)).tokens_used == 0

    def test_the_farthest_process_counts_wherever_it_was_seen(self) -> None:
        view, clock = FleetView(), same_clock()
        view.learn({"now": 1}, clock)
        view.learn_members({})
        assert view.join_fields(100.0) == {}
        view.learn_members({"lag_most": 30})
        view.learn({"now": 1, "lag_most": 20}, clock)
        assert view.join_fields(100.0) == {"lag_most": 30}
        view.learn({"now": 1, "lag_most": 40}, clock)
        assert view.join_fields(100.0) == {"lag_most": 40}

    def test_only_a_newer_list_of_members_is_to_be_confirmed(self) -> None:
        view = FleetView()
        assert view.learn_members({"members": [2, ["a"]]})
        assert not view.learn_members({"members": [2, ["b"]]})
        assert not view.learn_members({"members": [1, ["b"]]})
        assert not view.learn_members({})
        assert view.members == (2, ["a"])
        view.new_epoch()
        assert view.members == (0, ["a"])
        assert view.learn_members({"members": [1, ["b"]]})

    def test_limits_that_were_pushed_count_unless_newer_ones_are_known(self) -> None:
        view, clock = FleetView(), same_clock()
        view.learn(self.reply, clock)
        view.learn_pushed_limits({}, clock)
        for as_of, learners, known in (
            (98_000, "old", {"slots": "a"}),
            (99_000, "same", "same"),
            (99_500, "new", "new"),
        ):
            view.learn_pushed_limits({"learners": learners, "as_of": as_of}, clock)
            assert view.join_fields(100.0)["learners"][2] == known
        assert view.join_fields(100.0)["learners"] == (99_500, 500, "new")


class TestLearnt:
    @pytest.fixture
    async def state(self) -> AsyncIterator[LocalState]:
        state = LocalState("abc", Limits(slots=16, starts=600), same_clock(), lambda: None)
        yield state
        state.close()

    async def test_a_learnt_limit_is_in_force_until_a_reply_brings_none(
        self, state: LocalState, caplog: pytest.LogCaptureFixture
    ) -> None:
        learnt = Learnt(state)
        learnt.replied({})
        assert (state.rules, state.learning) == (learnt.given, False)
        learnt.replied({"learnt": {"slots": 9}})
        assert (state.rules.slots, state.rules.starts, state.learning) == (9, 600, True)
        learnt.replied({"learnt": []})  # the script's empty table
        assert (state.rules, state.learning) == (learnt.given, True)
        assert not caplog.records

    async def test_limits_that_change_take_effect_with_the_next_reply(self, state: LocalState) -> None:
        learnt = Learnt(state)
        learnt.given = Rules(slots=4)
        learnt.replied({})
        assert state.rules == Rules(slots=4)

    async def test_a_push_changes_it_too(self, state: LocalState) -> None:
        learnt = Learnt(state)
        learnt.pushed({"learnt": {"slots": 9}})
        assert state.rules.slots == 9
        learnt.pushed({"limits": 1})
        assert state.rules.slots == 9
        learnt.pushed({"learnt": {}})
        assert state.rules == learnt.given

    async def test_the_process_that_is_chosen_logs_it(
        self, state: LocalState, caplog: pytest.LogCaptureFixture
    ) -> None:
        Learnt(state).replied({"learnt": {"slots": 9, "tokens": 70}, "told": ["slots", "tokens"]})
        assert caplog.messages == [
            "admission: the provider allows 9 slots, fewer than the 16 that are set",
            "admission: the provider allows 70 tokens, and no limit on them is set",
        ]


class TestOutgoing:
    @pytest.mark.parametrize(
        "fields",
        [
            {"renames": [["t", "n"]]},
            {"cancels": ["t"]},
            {"pause": (1, "")},
            {"busy": (1, "")},
            {"urgent": True},
        ],
    )
    def test_what_cannot_wait(self, fields: dict[str, Any]) -> None:
        assert Outgoing(**fields)

    def test_what_goes_along_with_the_next_command(self) -> None:
        assert not Outgoing(releases=[["t", 0]], answers={"t": [1]}, stated_starts=3, idle=True)

    def test_all_that_was_taken_comes_back(self, clock: BootClock) -> None:
        outgoing = Outgoing(answers={"a": [1], "b": [1]}, stated_starts=3, renames=[["a", "n"]], cancels=["a"])
        taken = outgoing.take()
        assert taken.fields()["stated_starts"] == 3
        assert outgoing.fields() == Outgoing().fields()
        outgoing.answers, outgoing.renames, outgoing.cancels = {"b": [2]}, [["b", "n"]], ["b"]
        outgoing.put_back(taken)
        assert outgoing.fields() == {
            "release": [],
            "answers": {"a": [1], "b": [2]},
            "stated_starts": 3,
            "rename": [["a", "n"], ["b", "n"]],
            "cancel": ["a", "b"],
            "pause": None,
            "busy": None,
        }
        assert not outgoing.urgent

    def test_the_longest_pause_counts(self) -> None:
        outgoing = Outgoing()
        for pause in ((5, "a"), None, (5, "b"), (4, "c"), (6, "d"), (2, "e")):
            outgoing.add_pause(pause)
            outgoing.add_busy(pause)
        assert outgoing.pause == outgoing.busy == (6, "d")

    def test_a_release_asks_for_a_command_that_comes_sooner(self, clock: BootClock) -> None:
        outgoing = Outgoing(lasting_s=0.2)
        assert outgoing.release("a", 0.01, 1, -1, 0, may_wait=True)
        assert outgoing.due == pytest.approx(clock.now + 0.011)
        assert not outgoing.release("b", 0.02, 1, -1, 0, may_wait=True)
        assert outgoing.due == pytest.approx(clock.now + 0.011)
        assert outgoing.release("c", 0.001, 1, -1, 0, may_wait=True)
        assert outgoing.due == pytest.approx(clock.now + 0.002)
        clock.now += 0.0055
        assert [release[:2] for release in outgoing.take().releases] == [["a", 5], ["b", 15], ["c", 0]]

    def test_requests_that_last_long_hold_no_release_back(self, clock: BootClock) -> None:
        outgoing = Outgoing(lasting_s=600.0)
        outgoing.release("a", 0.01, 1, -1, 0, may_wait=True)
        assert outgoing.due == pytest.approx(clock.now + 0.015)

    @pytest.mark.parametrize(
        ("ok", "refused", "learning", "noted"),
        [
            (False, Refused.STARTS, False, True),
            (True, None, True, True),
            (True, None, False, False),
            (False, None, True, False),
        ],
    )
    def test_answers_that_the_learners_need(
        self, clock: BootClock, *, ok: bool, refused: Refused | None, learning: bool, noted: bool
    ) -> None:
        lease = Lease("t", 0.0, 1.0, 1.0, Watchdog())
        lease.ok, lease.refused, lease.granted_ms, lease.size, lease.sent_at = ok, refused, 77, 5, 96.8
        outgoing = Outgoing()
        outgoing.note_answer(lease, learning)
        assert outgoing.answers == ({"t": [77, refused or 0, 3200, 5]} if noted else {})
        assert outgoing.lasting_s == pytest.approx(0.1)

    def test_a_stated_limit_is_sent_when_it_changes_and_once_a_minute(self, clock: BootClock) -> None:
        outgoing = Outgoing()

        def sends(starts: int) -> int:
            outgoing.note_stated(starts)
            return outgoing.take().stated_starts

        assert [sends(0), sends(60), sends(60), sends(50), sends(50)] == [0, 60, 0, 50, 0]
        clock.now += 60
        assert sends(50) == 0
        clock.now += 0.5
        assert sends(50) == 50


class TestPendingGrants:
    @pytest.fixture
    def taken(self) -> list[tuple[Any, ...]]:
        return []

    @pytest.fixture
    def grants(self, taken: list[tuple[Any, ...]]) -> PendingGrants:
        return PendingGrants(lambda *grant: taken.append(grant))

    def test_pushes_are_taken_in_order_and_once(self, grants: PendingGrants, taken: list[Any]) -> None:
        grants.pushed([[1, "a", 10]])
        grants.pushed([[1, "a", 10], [3, "c", 30, 1, 5]])
        assert taken == [("a", 10)]
        assert grants.gap
        assert [grants.knows(number) for number in range(5)] == [True, True, False, True, False]
        grants.pushed([[2, "b", 20]])
        assert taken == [("a", 10), ("b", 20), ("c", 30, 1, 5)]
        assert (grants.seen, grants.gap) == (3, False)

    def test_a_reply_closes_gaps(self, grants: PendingGrants, taken: list[Any]) -> None:
        grants.pushed([[5, "e", 50]])
        grants.replied([[3, "c", 30]])
        assert taken == [("c", 30), ("e", 50)]
        assert (grants.seen, grants.gap) == (5, False)
        grants.replied([])
        assert grants.seen == 5

    def test_a_new_epoch_numbers_anew(self, grants: PendingGrants, taken: list[Any]) -> None:
        grants.pushed([[1, "a", 10], [3, "c", 30]])
        grants.restart()
        assert (grants.seen, grants.gap) == (0, False)
        grants.pushed([[1, "x", 10]])
        grants.restart(7)
        grants.pushed([[7, "old", 10], [8, "y", 20]])
        assert taken == [("a", 10), ("x", 10), ("y", 20)]


def test_the_oldest_starts_make_room() -> None:
    starts = RecentStarts()
    for i in range(20_001):
        starts.add(f"t{i}", 100.0 + i / 1000, 1)
    ages = starts.ages(200.0)
    assert (len(ages), ages[0], ages[-1]) == (20_000, ("t1", 99_999, 1), ("t20000", 80_000, 1))


def test_starts_that_are_not_kept_any_more_stay_away() -> None:
    starts = RecentStarts()
    starts.add("a", 1.0, 5)
    starts.set_tokens("b", 7)
    starts.drop("b")
    assert starts.ages(2.0) == [("a", 1000, 5)]
    starts.trim(100.0, 10.0)
    starts.set_tokens("a", 7)
    assert starts.ages(100.0) == []


def test_a_command_for_a_time_of_redis_is_sent_a_tick_later(clock: BootClock) -> None:
    redis_clock = same_clock()
    assert redis_clock.sent_at(100_000, 101_000) == pytest.approx(101.001, abs=1e-6)
    redis_clock.note(101.0, 103.0, 101_500)  # at the latest at 102.5, by this reading's lower bound
    clock.now = 103.0
    assert redis_clock.sent_at(103_000, 104_000) == pytest.approx(104.001, abs=1e-6)
    clock.now = 102.0
    assert redis_clock.sent_at(103_000, 104_000) == pytest.approx(103.001, abs=1e-6), "as the clock shows now"


def test_each_reply_may_narrow_the_clock_down() -> None:
    clock = same_clock()
    assert clock.not_after(100_500) == pytest.approx(100.5, abs=1e-6)
    clock.note(100.3, 100.4, 100_200)  # it is at least 0.1 s behind
    assert clock.not_after(100_500) == pytest.approx(100.6, abs=1e-6)


def test_no_step_is_known_before_the_first_reply() -> None:
    clock = RedisClock()
    assert not clock.stepped(100.0, 100_000)
    assert clock.id == ""


class TestRoundTrips:
    @pytest.mark.parametrize(
        ("age_s", "lag_ms"), [(0.0, 0), (0.001, 20), (0.07, 76), (0.25, 291), (1.7, 1735), (1.99, 2000), (9, 2000)]
    )
    def test_the_lag_goes_in_steps_of_a_quarter_up_to_a_quarter_of_the_lease(self, age_s: float, lag_ms: int) -> None:
        assert lag_step(age_s, Rules(guard_s=0, lease_s=8)) == lag_ms

    def test_beyond_the_last_step_the_lag_is_as_it_is_needed(self) -> None:
        assert lag_step(9.0, Rules(guard_s=0, lease_s=60)) == 9000

    def test_the_oldest_tenth_is_left_out(self) -> None:
        assert oldest(deque(range(20))) == 17
        assert oldest(deque([3.0, 1.0])) == 3.0
        assert oldest(deque()) == 0.0

    def test_small_changes_are_not_reported(self) -> None:
        trips, seen = RoundTrips(), []
        for seconds in (0.1, 0.12, 0.13, 0.09, 0.06):
            for _ in range(32):
                trips.note(seconds, 0.0)
            trips.update(Rules())
            seen.append(trips.rtt_ms)
        assert seen == [100, 100, 130, 90, 60]

    def test_pushes_show_how_old_grants_are(self) -> None:
        trips = RoundTrips()
        trips.note_push(0.3)
        trips.update(Rules(guard_s=0))
        assert (trips.rtt_ms, trips.lag_ms) == (0, 0), "before the first reply"
        trips.note(0.01, 0.0)
        trips.update(Rules(guard_s=0))
        assert (trips.rtt_ms, trips.lag_ms) == (10, 364)

    def test_the_log_says_what_a_distance_costs(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        rules = Rules(window_s=10, guard_s=0.3)
        trips = RoundTrips()
        for seconds in (0.1, 0.1, 0.12, 0.3, 0.32):  # lags of 61, 61, 76, 291 and 291 ms
            for _ in range(32):
                trips.note(seconds, seconds)
            trips.update(rules)
        assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
        assert "a round trip takes 100 ms; " in caplog.messages[0]
        assert "each start counts 61 ms longer: " in caplog.messages[0]
        assert "a round trip takes 300 ms; " in caplog.messages[1]
        assert "each start counts 291 ms longer: at most 94% " in caplog.messages[1]
        assert all("Redis is far away: " in message for message in caplog.messages)
        assert all("nearer to each other" in message for message in caplog.messages)

    def test_the_log_does_not_call_a_busy_redis_far_away(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        trips = RoundTrips()
        for seconds in (*(0.001,) * 24, *(0.3,) * 8):  # a quarter of the answers is late
            trips.note(seconds, seconds)
        trips.update(Rules(window_s=10, guard_s=0.3))
        (said,) = caplog.messages
        assert "some answers of Redis come late: a round trip takes 0 ms; " in said
        assert "far away" not in said

    def test_answers_that_are_late_without_a_distance_are_not_put_down_to_it(self) -> None:
        said = describe_cost(60.0, 0.8, 0.0, 0.186)
        assert "each start counts 186 ms longer" in said
        assert "nearer" not in said
        assert "more CPU" in said

    def test_the_log_says_it_again_where_it_is_more_than_half_as_much_more(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        trips = RoundTrips()
        for seconds in (10.0, 15.0, 15.5):
            for _ in range(32):
                trips.note(seconds, seconds)
            trips.update(Rules(guard_s=0, lease_s=120))
        assert ["counts 10000 ms" in text for text in caplog.messages] == [True, False]
        assert "counts 15500 ms" in caplog.messages[1]

    def test_the_log_says_what_a_distance_costs_once_there_is_a_limit(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        trips = RoundTrips()
        trips.note(0.3, 0.3)
        for rules in (
            Rules(starts=None, window_s=60, guard_s=0.3),
            Rules(starts=600, window_s=60, guard_s=0.3),
            Rules(starts=10, window_s=1, guard_s=0.3),
            Rules(starts=None, window_s=1, guard_s=0.3),
            Rules(starts=600, window_s=60, guard_s=0.3),
        ):
            trips.update(rules)
        assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
        assert "each start counts 291 ms longer: at most 99% " in caplog.messages[0]
        assert "each start counts 291 ms longer: at most 63% " in caplog.messages[1]

    def test_a_distance_costs_nothing_without_a_window(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        trips = RoundTrips()
        trips.note(0.3, 0.3)
        trips.update(Rules(starts=None, window_s=10, guard_s=0.3))
        assert trips.lag_ms == 291
        assert not caplog.records
