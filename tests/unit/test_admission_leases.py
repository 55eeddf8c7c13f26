"""A lease as the code that sends the request uses it, on a clock moved by hand; and the waiters' own order."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator

import pytest

from brimful_worker.admission import lease as lease_module
from brimful_worker.admission import waiters as waiters_module
from brimful_worker.admission.errors import StaleGrant
from brimful_worker.admission.lease import Lease, Refused
from brimful_worker.admission.policy import PACE_BURST, PACE_S, Limits, Pace, Rules, gather_s
from brimful_worker.admission.turns import NO_FLOW
from brimful_worker.admission.waiters import Queue, Waiter, Waiters
from brimful_worker.liveness.watchdog import Watchdog
from support.boot_clock import BootClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    return BootClock().used_by(monkeypatch, lease_module, waiters_module)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.stop()


@pytest.fixture
def lease(clock: BootClock, watchdog: Watchdog) -> Lease:
    """To be on the wire by 1000.4."""
    return Lease("aa.b.1.0", 0.25, 1000.4, 999.9, watchdog)


def test_a_new_lease_has_nothing_to_say(lease: Lease) -> None:
    assert not any((lease.lost, lease.ended, lease.given_back, lease.start_only, lease.deaths_forgotten))
    assert (lease.stated_starts, lease.sent_at, lease.size, lease.granted_ms, lease.deaths) == (0, 0, 0, 0, 0)
    assert (lease.ok, lease.tokens_used, lease.cooldown_s, lease.refused, lease.name) == (None,) * 5
    assert (lease.waited_s, lease.renewed, lease.deadline) == (0.25, 999.9, math.inf)


def test_refusals_are_numbered_as_the_script_reads_them() -> None:
    assert [int(refused) for refused in Refused] == [1, 2, 3]


class TestSent:
    def test_the_last_moment_is_not_too_late(self, lease: Lease, clock: BootClock) -> None:
        clock.now = 1000.4
        lease.sent()
        assert (lease.sent_at, lease.given_back) == (1000.4, False)

    def test_after_it_the_grant_is_given_back(self, lease: Lease, clock: BootClock) -> None:
        clock.now = 1000.41
        with pytest.raises(StaleGrant, match="too late"):
            lease.sent()
        assert (lease.sent_at, lease.given_back) == (0, True)

    def test_a_grant_serves_one_request(self, lease: Lease) -> None:
        lease.sent()
        with pytest.raises(StaleGrant, match="used already"):
            lease.sent()
        assert not lease.given_back

    def test_leases_of_several_windows_are_sent_together(
        self, lease: Lease, watchdog: Watchdog, clock: BootClock
    ) -> None:
        other = Lease("bb.b.1.0", 0, 1000.2, 999.9, watchdog)
        lease.companions = (other,)
        clock.now = 1000.2
        lease.sent()
        assert (lease.sent_at, other.sent_at) == (1000.2, 1000.2)

    def test_or_none_of_them_is(self, lease: Lease, watchdog: Watchdog, clock: BootClock) -> None:
        other = Lease("bb.b.1.0", 0, 1000.2, 999.9, watchdog)
        lease.companions = (other,)
        clock.now = 1000.3
        with pytest.raises(StaleGrant):
            lease.sent()
        assert lease.given_back
        assert other.given_back

    def test_what_was_not_sent_can_be_given_back(self, lease: Lease, watchdog: Watchdog) -> None:
        other = Lease("bb.b.1.0", 0, 1000.4, 999.9, watchdog)
        lease.companions = (other,)
        lease.give_back()
        assert lease.given_back
        assert other.given_back

    def test_what_was_sent_cannot(self, lease: Lease) -> None:
        lease.sent()
        lease.give_back()
        assert not lease.given_back


class TestReport:
    def test_what_is_reported_is_kept(self, lease: Lease) -> None:
        lease.report(ok=False, tokens_used=7, cooldown_s=0.5, refused=Refused.STARTS, stated_starts=60)
        assert (lease.ok, lease.tokens_used, lease.cooldown_s) == (False, 7, 0.5)
        assert (lease.refused, lease.stated_starts) == (Refused.STARTS, 60)

    def test_companions_count_tokens_but_judge_nothing(self, lease: Lease, watchdog: Watchdog) -> None:
        other = Lease("bb.b.1.0", 0, 1000.4, 999.9, watchdog)
        lease.companions = (other,)
        lease.report(ok=False, tokens_used=7, cooldown_s=0.5, refused=Refused.STARTS)
        assert (other.ok, other.tokens_used, other.cooldown_s, other.refused) == (None, 7, None, None)

    def test_a_slot_cools_down_after_a_failure_without_a_report(self, lease: Lease) -> None:
        assert lease.rest_s(1.0, failed=False) == 0
        assert lease.rest_s(1.0, failed=True) == 1.0

    def test_after_a_report_only_for_what_that_says(self, lease: Lease) -> None:
        lease.report(ok=True)
        assert lease.rest_s(1.0, failed=True) == 0
        lease.report(ok=True, cooldown_s=0)
        assert lease.rest_s(1.0, failed=True) == 0
        lease.report(ok=True, cooldown_s=0.3)
        assert lease.rest_s(1.0, failed=False) == 0.3

    def test_deaths_are_forgotten_when_that_is_asked(self, lease: Lease) -> None:
        assert not lease.deaths_forgotten
        lease.forget_deaths()
        assert lease.deaths_forgotten


class TestLoss:
    def test_its_request_is_ended_once(self, lease: Lease) -> None:
        calls: list[None] = []
        lease.on_lost(lambda: calls.append(None))
        lease.lose()
        lease.lose()
        assert lease.lost
        assert len(calls) == 1

    def test_nobody_has_to_listen(self, lease: Lease) -> None:
        lease.on_lost(lambda: pytest.fail("nobody listens any more"))
        lease.on_lost(None)
        lease.lose()
        assert lease.lost

    def test_what_has_ended_is_not_lost(self, lease: Lease) -> None:
        lease.on_lost(lambda: pytest.fail("it has ended"))
        lease.end()
        lease.lose()
        assert not lease.lost


class Transport:
    def __init__(self, sock: socket.socket | None) -> None:
        self.sock = sock

    def get_extra_info(self, name: str, /) -> object:
        return self.sock if name == "socket" else None


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


def is_shut(theirs: socket.socket) -> bool:
    try:
        return theirs.recv(1) == b""
    except BlockingIOError:
        return False


Pair = tuple[socket.socket, socket.socket]


class TestWatch:
    def test_a_watched_connection_is_shut(self, lease: Lease, pair: Pair) -> None:
        lease.watch(Transport(pair[0]))
        lease.shut_now()
        assert lease.lost
        assert is_shut(pair[1])

    def test_one_that_is_no_longer_watched_is_not(self, lease: Lease, pair: Pair) -> None:
        lease.watch(Transport(pair[0]))
        lease.unwatch()
        lease.shut_now()
        assert lease.lost
        assert not is_shut(pair[1])

    def test_a_new_one_takes_the_place_of_the_old(self, lease: Lease, pair: Pair) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            lease.watch(Transport(ours))
            lease.watch(Transport(pair[0]))
            lease.shut_now()
            assert not is_shut(theirs)
        assert is_shut(pair[1])

    def test_the_end_of_the_lease_ends_the_watch(self, lease: Lease, pair: Pair) -> None:
        lease.watch(Transport(pair[0]))
        lease.end()
        lease.shut_now()
        assert not is_shut(pair[1])

    @pytest.mark.parametrize("why", ["ended", "start_only"])
    def test_nothing_is_watched_for_one_that_needs_it_not(self, lease: Lease, pair: Pair, why: str) -> None:
        setattr(lease, why, True)
        lease.watch(Transport(pair[0]))
        lease.shut_now()
        assert not is_shut(pair[1])

    def test_a_transport_without_a_socket_is_left_alone(self, lease: Lease, caplog: pytest.LogCaptureFixture) -> None:
        lease.watch(Transport(None))
        closed = socket.socket()
        closed.close()
        lease.watch(Transport(closed))
        lease.shut_now()
        assert caplog.text == ""

    def test_shutting_says_that_it_is_lost(self, lease: Lease, pair: Pair) -> None:
        lease.watch(Transport(pair[0]))
        lease.shut()
        assert lease.lost
        lease.shut_now()
        assert not is_shut(pair[1]), "the watchdog does it"


@pytest.fixture
async def waiters() -> Waiters:
    return Waiters("aa")


def add(waiters: Waiters, since: float, queue: Queue = Queue.BATCH, tokens: int = 0, name: str = "") -> Waiter:
    return waiters.add(queue, NO_FLOW, tokens, since, asyncio.get_running_loop().create_future(), name)


class TestWaiters:
    async def test_one_that_waited_before_goes_to_the_front(self, waiters: Waiters) -> None:
        first, second = add(waiters, 5.0), add(waiters, 6.0)
        same, older = add(waiters, 5.0), add(waiters, 4.0)
        assert waiters.register(9) == [older, first, second, same]

    async def test_as_many_as_there_is_room_for_are_registered(self, waiters: Waiters) -> None:
        every = [add(waiters, place) for place in range(5)]
        interactive = add(waiters, 9.0, Queue.INTERACTIVE)
        assert waiters.register(2) == [interactive, *every[:2]]
        assert waiters.register(2) == []
        assert waiters.pop(every[0].id) is every[0]
        assert waiters.register(2) == [every[2]]
        assert (waiters.behind(Queue.BATCH), waiters.count(Queue.BATCH), len(waiters)) == (2, 4, 5)

    async def test_one_that_gave_up_is_not_registered(self, waiters: Waiters) -> None:
        gone, there = add(waiters, 1.0), add(waiters, 2.0)
        gone.future.cancel()
        assert waiters.register(9) == [there]

    async def test_more_are_registered_when_half_of_them_have_gone(self, waiters: Waiters) -> None:
        every = [add(waiters, place) for place in range(6)]
        assert waiters.wants_registering(Queue.BATCH, 4)
        waiters.register(4)
        for waiter, wants in zip(every, (False, True), strict=False):
            waiters.pop(waiter.id)
            assert waiters.wants_registering(Queue.BATCH, 4) is wants
        for waiter in every[4:]:
            waiters.cancel(waiter)
        assert not waiters.wants_registering(Queue.BATCH, 4)

    async def test_redis_knows_those_that_are_registered(self, waiters: Waiters) -> None:
        known, unknown = add(waiters, 1.0), add(waiters, 2.0)
        waiters.register(1)
        assert waiters.cancel(known)
        assert not waiters.cancel(unknown)
        assert not waiters.cancel(known)
        assert len(waiters) == 0
        assert waiters.pop(known.id) is None

    async def test_tickets_name_process_queue_request_and_tokens(self, waiters: Waiters) -> None:
        plain, named = add(waiters, 1.0, tokens=7), add(waiters, 2.0, Queue.INTERACTIVE, name="r")
        assert plain.id == "aa.b.000000001.7"
        process, queue, number, tokens = named.id.split(".")
        assert (process, queue, number[:10], tokens) == ("aa", "i", "000000002-", "0")
        assert waiters_module.name_of(named.id) == named.name == number[10:]
        assert add(waiters, 3.0, name="r").name == named.name
        assert (plain.name, waiters_module.name_of(plain.id)) == ("", "")
        assert waiters_module.is_start_only(add(waiters, 4.0, Queue.START_ONLY).id)
        assert not waiters_module.is_start_only(plain.id)

    async def test_ages_are_in_milliseconds(self, waiters: Waiters, clock: BootClock) -> None:
        waiter = add(waiters, 998.5)
        assert waiter.age_ms == 1500
        clock.now = 998.0
        assert waiter.age_ms == -500

    async def test_draining_returns_those_that_still_wait(self, waiters: Waiters) -> None:
        first, gone, last = add(waiters, 1.0), add(waiters, 2.0), add(waiters, 3.0, Queue.START_ONLY)
        gone.future.cancel()
        waiters.register(1)
        assert sorted(waiters.drain(), key=lambda waiter: waiter.since) == [first, last]
        assert len(waiters) == 0
        assert list(waiters.registered()) == []

    async def test_one_that_got_its_grant_is_out_of_its_flow_s_turns(self, waiters: Waiters) -> None:
        first, _ = add(waiters, 1.0), add(waiters, 2.0)
        waiters.register(9)
        assert waiters.pop(first.id) is first
        assert waiters.turns[Queue.BATCH].demands()[""].number == 1

    async def test_one_that_gave_up_is_out_of_its_flow_s_turns(self, waiters: Waiters) -> None:
        gone, there = add(waiters, 1.0), add(waiters, 2.0, tokens=7)
        waiters.cancel(gone)
        assert waiters.turns[Queue.BATCH].demands()[""].number == 1
        waiters.drain()
        assert waiters.turns[Queue.BATCH].demands() == {}
        assert there.tokens == 7


class TestRules:
    def test_the_times_of_a_process_follow_from_its_lease(self) -> None:
        rules = Rules(lease_s=12, cooldown_s=1)
        assert (rules.heartbeat_s, rules.idle_s, rules.reply_timeout_s) == (4, 9, 3)
        assert (rules.renew_after_s(1), rules.renew_least_s, rules.local_lease_s) == (3, 1, 10.75)

    def test_no_limit_is_stored_as_0(self) -> None:
        fields = Limits(starts=None, tokens=None, budget=None, reserve_slots=0, circuit_breaker=0).fields()
        assert [fields[name] for name in ("starts", "tokens", "budget", "reserve_slots", "breaker")] == [0] * 5

    def test_a_guard_that_is_given_stays(self) -> None:
        assert Limits(window_s=10, guard_s=0.5).guard_s == 0.5
        assert Limits(window_s=10).guard_s == pytest.approx(0.3)

    def test_a_process_with_many_leases_gathers_what_it_sends(self) -> None:
        assert gather_s(99) == 0
        assert gather_s(100) == pytest.approx(0.001)
        assert gather_s(1000) == pytest.approx(0.01)
        assert gather_s(5000) == 0.02

    @pytest.mark.parametrize(
        ("held", "waiting", "paced"), [(8, 0, True), (0, 8, True), (4, 4, True), (3, 4, False), (0, 7, False)]
    )
    def test_commands_are_paced_where_there_is_something_to_send_together(
        self, held: int, waiting: int, paced: bool
    ) -> None:
        pace = Pace()
        for _ in range(PACE_BURST + 1):
            pace.sent(10.0)
        assert pace.wait_s(10.0, held, waiting) == pytest.approx(PACE_S if paced else 0)
        assert pace.wait_s(10.0 + PACE_S, held, waiting) == pytest.approx(0)

    def test_a_burst_may_go_at_once(self) -> None:
        pace = Pace()
        for _ in range(PACE_BURST):
            assert pace.wait_s(10.0) == 0
            pace.sent(10.0)
        assert pace.wait_s(10.0) == pytest.approx(0)
        pace.sent(10.0)
        assert pace.wait_s(10.0) > 0
        pace.sent(20.0)
        assert pace.wait_s(20.0) == 0, "time that has passed gives a new burst"

    def test_the_wait_of_many_leases_counts_from_the_last_command(self) -> None:
        pace = Pace()
        pace.sent(10.0)
        assert pace.wait_s(10.002, held=1000) == pytest.approx(0.008)
        assert pace.wait_s(10.02, held=1000) == 0
