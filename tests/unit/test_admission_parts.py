"""The admission's parts that need no server: numbers, clocks, tickets, outbox, watchdog, the scripts' headers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.config import Settings
from brimful.names import Workload
from brimful.state.keys import ADMISSION, admission_keys
from brimful_worker.admission import Lease, StaleGrant
from brimful_worker.admission.keys import SCRIPT_KEYS, Keys
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits, Rules, abort_margin, wire_lag
from brimful_worker.admission.recent_starts import History
from brimful_worker.admission.waiters import WORKLOADS, Queue, Waiter, Waiting
from brimful_worker.admission.wire.outgoing import Outbox
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.scripts import exchange_arguments, load
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import Watchdog
from support.waiting import wait_until_async

LUA = resources.files("brimful_worker.admission").joinpath("lua")
SCRIPTS = [entry.name[:-4] for entry in LUA.iterdir() if entry.name.endswith(".lua")]


def header(text: str, section: str) -> str:
    """The comment lines of one section of a script's header."""
    match = re.search(rf"^-- {section}:(.*?)(?=^-- [A-Z][A-Za-z]+:|^[^-]|^$)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no {section} in the header"
    return match[1]


@pytest.fixture
def fresh_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class TestScripts:
    def test_each_script_has_its_keys_and_no_other_exists(self) -> None:
        assert sorted(SCRIPTS) == sorted(SCRIPT_KEYS)

    @pytest.mark.parametrize("name", SCRIPTS)
    def test_the_headers_keys_are_those_that_are_passed(self, name: str) -> None:
        text = LUA.joinpath(f"{name}.lua").read_text("utf-8")
        told = re.findall(r"(\d+) (\w+)", header(text, "KEYS"))
        assert [key for _, key in told] == list(SCRIPT_KEYS[name])
        assert [int(number) for number, _ in told] == list(range(1, len(told) + 1))
        for section in ("Purpose", "ARGV", "Returns"):
            assert header(text, section).strip()

    @pytest.mark.parametrize("name", SCRIPTS)
    def test_arguments_are_bound_to_the_headers_names_first(self, name: str) -> None:
        text = load(name).text
        told = [argument for _, argument in re.findall(r"--\s+(\d+) (\w+)", header(text, "ARGV"))]
        for number, argument in enumerate(told, 1):
            assert re.search(rf"local [\w, ]*\b{argument}\b[\w, ]* = .*ARGV\[{number}\]", text), argument
        assert f"ARGV[{len(told) + 1}]" not in text

    def test_each_key_is_bound_by_name_and_used(self) -> None:
        text = load("exchange").text
        names = re.findall(r"KEYS\[(\d+)\]", text)
        assert [int(number) for number in names] == list(range(1, len(ADMISSION) + 1))
        bound = re.findall(r"(\w+)_key", "\n".join(line for line in text.splitlines() if "KEYS[" in line))
        assert bound == list(ADMISSION)
        for name in ADMISSION:
            assert text.count(f"{name}_key") > 1, name

    def test_each_message_field_is_in_the_header(self) -> None:
        text = load("exchange").text
        used = set(re.findall(r"\bmessage\.(\w+)", text)) | set(re.findall(r"\btold\.(\w+)", text))
        told = header(text, "Message")
        assert {field for field in used if not re.search(rf"\b{field}\b", told)} == set()

    def test_each_reply_field_is_in_the_header(self) -> None:
        text = load("exchange").text
        told = header(text, "Returns")
        fields = set(re.findall(r"\breply\.(\w+)", text))
        assert {field for field in fields if not re.search(rf"\b{field}\b", told)} == set()

    def test_no_key_is_built_in_lua(self) -> None:
        for name in SCRIPTS:
            assert "brimful:" not in load(name).text

    def test_all_keys_carry_one_hash_tag(self) -> None:
        keys = Keys("abc")
        for name in (*admission_keys("abc").values(), keys.to, keys.everyone):
            assert re.findall(r"\{(.*?)\}", name) == ["abc"]
        assert exchange_arguments(keys, b"{}")[0] == len(ADMISSION)

    def test_includes_are_put_in(self) -> None:
        assert "--#include" not in load("exchange").text
        assert len(load("exchange").sha) == 40


class TestPolicy:
    def test_the_settings_make_the_limits(self) -> None:
        limits = Limits.from_settings(Settings(slots=3, starts=0, window_s=10))
        assert (limits.slots, limits.starts, limits.window_s) == (3, None, 10)
        assert limits.guard_s == pytest.approx(0.3)
        assert limits.fields()["starts"] == 0
        assert all(isinstance(value, int) for value in limits.fields().values())

    def test_the_guard_is_split_between_the_process_and_the_network(self) -> None:
        assert wire_lag(0.8) == pytest.approx(0.4)
        assert wire_lag(0.3) == pytest.approx(0.1)
        assert wire_lag(0) == 0

    @given(st.floats(0, 100))
    def test_the_network_gets_at_least_half(self, guard_s: float) -> None:
        assert 0 <= wire_lag(guard_s) <= guard_s / 2

    def test_the_cool_off_fits_before_the_lease_ends_in_redis(self) -> None:
        assert abort_margin(8, 1) == pytest.approx(1.25)
        assert abort_margin(2, 5) == 1

    def test_few_tickets_are_registered(self) -> None:
        rules = Rules.from_fields(Limits(slots=16).fields())
        assert rules.registered == 32
        assert Rules.from_fields(Limits(slots=100_000).fields()).registered == 4096
        assert rules.heartbeat_s < rules.lease_s / 2 < rules.idle_s


class TestClock:
    def test_deadlines_are_never_later_than_true(self) -> None:
        clock = RedisClock()
        # Redis's clock is the monotonic one + 1000 s; turns take from 5 to 100 ms to Redis
        for sent, early in ((1.0, 0.1), (2.0, 0.005), (3.0, 0.09)):
            clock.note(sent, int((1000 + sent + early) * 1000))
        true = 4.0
        assert true - 0.006 <= clock.not_after((1000 + true) * 1000) <= true

    @given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=40))
    def test_whatever_the_network_does(self, turns: list[tuple[float, float]]) -> None:
        clock, at = RedisClock(), 0.0
        for there, back in turns:
            clock.note(at, int((at + there) * 1000))
            at += there + back
        assert clock.not_after(at * 1000) <= at + 0.001 + 1e-9

    def test_the_bound_leaves_room_for_a_slow_network_but_for_no_step(self) -> None:
        clock = RedisClock()
        assert clock.bound_ms(1.0) is None
        clock.note(1.0, 50_000)
        clock.note(1.5, 50_700)
        bound = clock.bound_ms(2.0)
        assert bound is not None
        assert 51_400 <= bound < 51_500  # the slowest of those before was 200 ms slower than the fastest
        clock.reset()
        assert clock.bound_ms(3.0) is None


class TestWaiting:
    @pytest.fixture
    def loop(self, fresh_loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        return fresh_loop

    def add(self, waiting: Waiting, loop: asyncio.AbstractEventLoop, since: float, workload: str = "batch") -> Waiter:
        return waiting.add(WORKLOADS[Workload(workload)], 7, since, loop.create_future())

    def test_only_the_first_few_are_registered_oldest_first(self, loop: Any) -> None:
        waiting = Waiting("abc")
        tickets = [self.add(waiting, loop, float(i)) for i in range(10)]
        assert waiting.wants_registering(Queue.BATCH, 4)
        assert waiting.register(4) == tickets[:4]
        assert not waiting.wants_registering(Queue.BATCH, 4)
        assert waiting.count(Queue.BATCH) == 10
        assert waiting.behind(Queue.BATCH) == 6
        assert [waiting.pop(ticket.id) for ticket in tickets[:2]] == tickets[:2]
        assert waiting.wants_registering(Queue.BATCH, 4)
        assert waiting.register(4) == tickets[4:6]
        assert tickets[0].id == "abc.b.000000001.7"

    def test_a_stale_grant_asked_anew_goes_to_the_front(self, loop: Any) -> None:
        waiting = Waiting("abc")
        self.add(waiting, loop, 5.0)
        again = self.add(waiting, loop, 1.0)
        assert waiting.register(1) == [again]

    def test_cancelled_ones_are_passed_over_and_not_counted(self, loop: Any) -> None:
        waiting = Waiting("abc")
        first, second, third = (self.add(waiting, loop, float(i)) for i in range(3))
        waiting.register(1)
        for ticket, known in ((first, True), (second, False)):
            ticket.future.cancel()
            assert waiting.cancel(ticket) is known
        assert waiting.count(Queue.BATCH) == 1
        assert waiting.register(5) == [third]
        assert waiting.pop(second.id) is None
        assert waiting.count(Queue.BATCH) == 1

    def test_a_grant_that_meets_a_cancelled_wait(self, loop: Any) -> None:
        waiting = Waiting("abc")
        ticket = self.add(waiting, loop, 1.0)
        waiting.register(5)
        ticket.future.cancel()
        assert waiting.pop(ticket.id) is ticket
        assert waiting.cancel(ticket) is False
        assert waiting.count(Queue.BATCH) == 0
        assert not waiting

    def test_workloads_are_registered_apart(self, loop: Any) -> None:
        waiting = Waiting("abc")
        batch = [self.add(waiting, loop, float(i)) for i in range(3)]
        interactive = [self.add(waiting, loop, float(i), "interactive") for i in range(3)]
        assert waiting.register(2) == [*interactive[:2], *batch[:2]]
        assert len(waiting.drain()) == 6
        assert not waiting


def test_an_outbox_is_taken_whole_and_put_back_whole() -> None:
    box = Outbox()
    assert not box
    box.releases.append(["a", 0, 1, -1, 0])
    box.hold((100, "short"))
    taken = box.take()
    assert not box
    box.releases.append(["b", 0, 1, -1, 0])
    box.hold((500, "long"))
    box.put_back(taken)
    assert [release[0] for release in box.releases] == ["a", "b"]
    assert box.pause == (500, "long")


def test_the_history_keeps_the_window_and_a_little() -> None:
    history = History()
    for i in range(100):
        history.add(f"t{i}", float(i), 5)
    history.settle("t99", 2)
    history.drop("t98")
    history.trim(100.0, 10.0)
    ages = history.ages(100.0)
    assert ages[-1] == ("t99", 1000, 2)
    assert ages[0][1] <= 25_000
    assert len(history) == len(ages) == 24


class Watched:
    """Holds a slot until ``deadline``."""

    def __init__(self, deadline: float) -> None:
        self.looked_at = 0
        self.ends = deadline
        self.told = threading.Event()

    @property
    def deadline(self) -> float:
        self.looked_at += 1
        return self.ends

    def shut(self) -> None:
        self.told.set()


class TestWatchdog:
    def test_it_shuts_a_connection_whose_deadline_has_passed_and_no_other(self) -> None:
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        kept, other = socket.socketpair()
        with ours, theirs, kept, other:
            ending = Watched(boot_time() + 60)
            dog.add(Watched(boot_time() + 60), kept.fileno())
            dog.add(ending, ours.fileno())
            ending.ends = 0.0
            dog.look()
            theirs.settimeout(10)
            assert theirs.recv(1) == b""  # closed as the provider sees it
            assert ending.told.wait(5)
            other.settimeout(0.01)
            with pytest.raises(TimeoutError):
                other.recv(1)
            dog.stop()

    def test_a_removed_one_is_left_alone(self) -> None:
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            watch = dog.add(Watched(boot_time() + 60), ours.fileno())
            dog.remove(watch)
            dog.stop()
            ours.send(b"x")
            assert theirs.recv(1) == b"x"

    def test_who_has_the_descriptor_now_is_left_alone(self) -> None:
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        number, ending = ours.fileno(), Watched(boot_time() + 60)
        dog.add(ending, number)
        another, peer = socket.socketpair()
        with theirs, peer:
            os.dup2(another.fileno(), ours.detach())
            another.close()
            with socket.socket(fileno=number) as another:
                ending.ends = 0.0
                dog.look()
                assert ending.told.wait(5)
                dog.stop()
                another.send(b"x")
                assert peer.recv(1) == b"x"

    def test_a_closed_descriptor_harms_nobody(self) -> None:
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        with theirs:
            gone, other = Watched(boot_time() + 60), Watched(boot_time() + 60)
            dog.add(gone, ours.fileno())
            ours.close()
            dog.add(other, theirs.fileno())
            for ending in (gone, other):
                ending.ends = 0.0
                dog.look()
                assert ending.told.wait(5)
            dog.stop()
            with pytest.raises(OSError, match="Bad file descriptor"):
                dog.add(gone, -1)

    def test_it_needs_no_descriptor_when_there_is_none_left(self) -> None:
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        ending = Watched(boot_time() + 60)
        before, fillers = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
        with ours, theirs:
            dog.add(ending, ours.fileno())
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
                with contextlib.suppress(OSError):
                    while True:
                        fillers.append(os.dup(ours.fileno()))
                ending.ends = 0.0
                dog.look()
                theirs.settimeout(10)
                assert theirs.recv(1) == b""
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                for filler in fillers:
                    os.close(filler)
            dog.stop()

    def test_none_is_looked_at_before_the_first_may_end(self) -> None:
        first = boot_time() + 60
        dog = Watchdog(lambda: first)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ending = Watched(0.0)  # it says one thing, and who knows all of them another
            dog.add(ending, ours.fileno())
            for _ in range(3):
                dog.look()
            assert not ending.told.wait(0.05)
            assert ending.looked_at <= 1, "as it was added"
            first = 0.0
            dog.look()
            assert ending.told.wait(5)
            dog.stop()

    def test_it_sees_that_the_machine_was_suspended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The clock jumps while timers stand still."""
        ahead = 0.0
        monkeypatch.setattr("brimful_worker.liveness.watchdog.boot_time", lambda: boot_time() + ahead)
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ending = Watched(boot_time() + 3600)
            dog.add(ending, ours.fileno())
            assert not ending.told.wait(0.05)
            ahead = 7200.0
            assert ending.told.wait(10)
            dog.stop()


class TestHoldings:
    """A process's leases, with Redis's clock 1000 s ahead of its own."""

    @pytest.fixture
    def told(self) -> list[None]:
        return []

    @pytest.fixture
    async def local_state(self, told: list[None]) -> AsyncIterator[LocalState]:
        clock = RedisClock()
        now = boot_time()
        clock.note(now, (now + 1000) * 1000)
        local_state = LocalState("abc", Limits(starts=None), clock, lambda: told.append(None))
        yield local_state
        local_state.close()

    async def granted(self, local_state: LocalState, at: float) -> Lease:
        ticket = local_state.ask(Queue.BATCH, 0, boot_time())
        local_state.waiting.register(32)
        local_state.granted(ticket.id, (at + 1000) * 1000)
        return await ticket.future

    async def test_a_lease_that_had_ended_is_not_raised_from_the_dead_by_joining(self, local_state: LocalState) -> None:
        old, young = await self.granted(local_state, boot_time() - 3), await self.granted(local_state, boot_time())
        received = old.deadline + 0.01
        assert local_state.live(boot_time()) == [old.id, young.id]
        local_state.rejoined(received - 2, received)
        assert old.lost
        assert not young.lost
        assert young.deadline == pytest.approx(received - 2 + 6.75)
        assert list(local_state.held) == [young]
        assert list(local_state.ending) == [old.id]
        local_state.end(old, failed=True)
        assert not local_state.ending

    async def test_a_grant_that_was_long_on_its_way_is_renewed_first(
        self, local_state: LocalState, told: list[None]
    ) -> None:
        await self.granted(local_state, boot_time())
        del told[:]
        late = await self.granted(local_state, boot_time() - 6)
        assert told
        renewal = local_state.next_renewal()
        assert renewal is not None
        assert renewal < boot_time()
        assert local_state.to_renew(boot_time()) == [late.id]

    async def test_its_end_is_not_overlooked(self, local_state: LocalState) -> None:
        young = await self.granted(local_state, boot_time())
        late = await self.granted(local_state, boot_time() - 6.7)
        local_state.plan_aborts()
        await wait_until_async(lambda: late.lost, "it is ended")
        assert not young.lost

    async def test_leases_end_sooner_when_they_become_shorter(self, local_state: LocalState) -> None:
        lease = await self.granted(local_state, boot_time())
        local_state.obey(Rules.from_fields(Limits(starts=None, lease_s=3).fields()))
        assert lease.deadline == pytest.approx(lease.term.renewed + 1.75)
        local_state.obey(Rules.from_fields(Limits(starts=None, lease_s=8).fields()))
        assert lease.deadline == pytest.approx(lease.term.renewed + 1.75)

    async def test_leases_that_become_longer_are_renewed_before_they_are_believed(
        self, local_state: LocalState, told: list[None]
    ) -> None:
        """Redis gave them the short one. So it did to a grant that was on its way meanwhile."""
        local_state.obey(Rules.from_fields(Limits(starts=None, lease_s=3).fields()))
        before = await self.granted(local_state, boot_time())
        del told[:]
        local_state.obey(Rules.from_fields(Limits(starts=None, lease_s=30).fields()))
        late = await self.granted(local_state, boot_time() - 0.5)
        assert told
        for lease in (before, late):
            assert lease.deadline == pytest.approx(lease.term.renewed + 1.75)
        assert set(local_state.to_renew(boot_time())) == {before.id, late.id}
        sent = boot_time()
        local_state.renewed(sent)
        assert before.deadline == late.deadline == pytest.approx(sent + 28.75)
        assert local_state.to_renew(boot_time()) == []
        after = await self.granted(local_state, boot_time())
        assert after.deadline == pytest.approx(after.term.renewed + 28.75)

    async def test_a_grant_is_good_for_one_sending(self, local_state: LocalState) -> None:
        lease = await self.granted(local_state, boot_time())
        lease.sent()
        with pytest.raises(StaleGrant):
            lease.sent()
        assert not lease.given_back


def test_waits_that_are_given_up_do_not_pile_up(fresh_loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting("abc")
    first = waiting.add(Queue.BATCH, 0, 0.0, fresh_loop.create_future())
    waiting.register(1)
    kept = waiting.add(Queue.BATCH, 0, 1.0, fresh_loop.create_future())
    for i in range(5000):
        ticket = waiting.add(Queue.BATCH, 0, float(i), fresh_loop.create_future())
        ticket.future.cancel()
        waiting.cancel(ticket)
    assert len(waiting._behind[Queue.BATCH]) < 200
    assert waiting.count(Queue.BATCH) == 2
    assert waiting.pop(first.id) is first
    assert waiting.register(1) == [kept]


def test_failing_tells_all_who_wait_even_beside_one_who_was_cancelled(fresh_loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting("abc")
    gone, here = (waiting.add(Queue.BATCH, 0, 0.0, fresh_loop.create_future()) for _ in range(2))
    waiting.register(2)
    gone.future.cancel()
    assert waiting.drain() == [here]
