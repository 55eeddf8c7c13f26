"""The admission's parts that need no server: numbers, clocks, tickets, outbox, watchdog, the scripts' headers."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.config import Settings
from brimful.keys import ADMISSION, admission_keys
from brimful.names import Workload
from brimful_worker.admission.clock import RedisClock
from brimful_worker.admission.history import History
from brimful_worker.admission.keys import SCRIPT_KEYS, Keys
from brimful_worker.admission.outbox import Outbox
from brimful_worker.admission.policy import Limits, Rules, abort_margin, wire_lag
from brimful_worker.admission.scripts import exchange_arguments, load
from brimful_worker.admission.tickets import Ticket, Waiting
from brimful_worker.admission.watchdog import Watchdog

LUA = resources.files("brimful_worker.admission").joinpath("lua")
SCRIPTS = [entry.name[:-4] for entry in LUA.iterdir() if entry.name.endswith(".lua")]


def header(text: str, section: str) -> str:
    """The comment lines of one section of a script's header."""
    match = re.search(rf"^-- {section}:(.*?)(?=^-- [A-Z][A-Za-z]+:|^[^-]|^$)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no {section} in the header"
    return match[1]


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
        # Redis's clock is the monotonic one + 1000 s; turns take from 10 to 200 ms
        for sent, took, early in ((1.0, 0.2, 0.1), (2.0, 0.01, 0.005), (3.0, 0.1, 0.09)):
            clock.note(sent, sent + took, int((1000 + sent + early) * 1000))
        true = 4.0
        assert true - 0.006 <= clock.not_after((1000 + true) * 1000) <= true

    @given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=40))
    def test_whatever_the_network_does(self, turns: list[tuple[float, float]]) -> None:
        clock, at = RedisClock(), 0.0
        for there, back in turns:
            clock.note(at, at + there + back, int((at + there) * 1000))
            at += there + back
        assert clock.not_after(at * 1000) <= at + 0.001 + 1e-9

    def test_the_bound_leaves_room_for_a_slow_network_but_for_no_step(self) -> None:
        clock = RedisClock()
        assert clock.bound_ms(1.0) is None
        clock.note(1.0, 1.2, 50_000)
        bound = clock.bound_ms(2.0)
        assert bound is not None
        assert 51_200 <= bound < 53_000
        clock.reset()
        assert clock.bound_ms(3.0) is None


class TestWaiting:
    @pytest.fixture
    def loop(self) -> Any:
        loop = asyncio.new_event_loop()
        yield loop
        loop.close()

    def add(self, waiting: Waiting, loop: asyncio.AbstractEventLoop, since: float, workload: str = "batch") -> Ticket:
        return waiting.add(Workload(workload), 7, since, loop.create_future())

    def test_only_the_first_few_are_registered_oldest_first(self, loop: Any) -> None:
        waiting = Waiting("abc")
        tickets = [self.add(waiting, loop, float(i)) for i in range(10)]
        assert waiting.wants_registering(4)
        assert waiting.register(4) == tickets[:4]
        assert not waiting.wants_registering(4)
        assert waiting.count(Workload.BATCH) == 10
        assert waiting.behind(Workload.BATCH) == 6
        assert [waiting.pop(ticket.id) for ticket in tickets[:2]] == tickets[:2]
        assert waiting.wants_registering(4)
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
        assert waiting.count(Workload.BATCH) == 1
        assert waiting.register(5) == [third]
        assert waiting.pop(second.id) is None
        assert waiting.count(Workload.BATCH) == 1

    def test_a_grant_that_meets_a_cancelled_wait(self, loop: Any) -> None:
        waiting = Waiting("abc")
        ticket = self.add(waiting, loop, 1.0)
        waiting.register(5)
        ticket.future.cancel()
        assert waiting.pop(ticket.id) is ticket
        assert waiting.cancel(ticket) is False
        assert waiting.count(Workload.BATCH) == 0
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


class TestWatchdog:
    def test_it_shuts_a_connection_whose_deadline_has_passed_and_no_other(self) -> None:
        dog, shut = Watchdog(), threading.Event()
        ours, theirs = socket.socketpair()
        kept, other = socket.socketpair()
        with ours, theirs, kept, other:
            deadlines = {"ours": time.monotonic() + 60}
            dog.add(kept.fileno(), lambda: time.monotonic() + 60, lambda: None)
            dog.add(ours.fileno(), lambda: deadlines["ours"], shut.set)
            deadlines["ours"] = 0.0
            theirs.settimeout(10)
            assert theirs.recv(1) == b""  # closed as the provider sees it
            assert shut.wait(5)
            other.settimeout(0.01)
            with pytest.raises(TimeoutError):
                other.recv(1)
            dog.stop()

    def test_a_removed_one_is_left_alone(self) -> None:
        dog = Watchdog()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            watch = dog.add(ours.fileno(), lambda: time.monotonic() + 60, lambda: None)
            dog.remove(watch)
            dog.stop()
            ours.send(b"x")
            assert theirs.recv(1) == b"x"
