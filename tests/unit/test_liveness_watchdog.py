"""The watchdog shuts a connection when its lease has ended, and no other."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import NAP_S, Schedule, Watchdog
from support.waiting import wait_until


class Holder:
    """Holds a slot until ``deadline``."""

    def __init__(self) -> None:
        self.deadline: float = boot_time() + 60
        self.shut_called = threading.Event()

    def shut(self) -> None:
        self.shut_called.set()

    def end(self, dog: Watchdog) -> None:
        """Let the lease end now, and wait until the watchdog has seen that."""
        self.deadline = 0.0
        dog.look()
        assert self.shut_called.wait(60)


class CountedHolder(Holder):
    """Counts how often its deadline is read."""

    def __init__(self) -> None:
        self.reads = 0
        super().__init__()

    @property
    def deadline(self) -> float:
        self.reads += 1
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline = deadline


@contextlib.contextmanager
def closing(dog: Watchdog) -> Iterator[Watchdog]:
    yield dog
    dog.stop()


@pytest.fixture
def dog() -> Iterator[Watchdog]:
    with closing(Watchdog()) as dog:
        yield dog


def test_a_connection_is_shut_after_its_deadline_and_no_other(dog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    kept, other = socket.socketpair()
    with ours, theirs, kept, other:
        ending = Holder()
        dog.add(Holder(), kept.fileno())
        dog.add(ending, ours.fileno())
        ending.end(dog)
        theirs.settimeout(10)
        assert theirs.recv(1) == b""  # closed as the provider sees it
        other.settimeout(0.01)
        with pytest.raises(TimeoutError):
            other.recv(1)


def test_an_earlier_deadline_is_seen_at_once(dog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        late, early = Holder(), Holder()
        late.deadline += 3600
        dog.add(late, ours.fileno())
        early.deadline = boot_time()
        dog.add(early, theirs.fileno())
        assert early.shut_called.wait(60)
        assert not late.shut_called.is_set()


def test_one_added_after_all_others_were_removed(dog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        first, second = Holder(), Holder()
        first.deadline = boot_time() + 0.2
        dog.remove(dog.add(first, ours.fileno()))
        second.deadline = boot_time() + 0.3
        dog.add(second, theirs.fileno())
        assert second.shut_called.wait(60)
        assert not first.shut_called.is_set()


def test_a_removed_connection_is_left_alone() -> None:
    dog = Watchdog()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = dog.add(Holder(), ours.fileno())
        dog.remove(watch)
        dog.stop()
        ours.send(b"x")
        assert theirs.recv(1) == b"x"


def test_a_connection_that_reuses_the_descriptor_is_left_alone() -> None:
    dog = Watchdog()
    ours, theirs = socket.socketpair()
    number, ending = ours.fileno(), Holder()
    dog.add(ending, number)
    another, peer = socket.socketpair()
    with theirs, peer:
        os.dup2(another.fileno(), ours.detach())
        another.close()
        with socket.socket(fileno=number) as another:
            ending.end(dog)
            dog.stop()
            another.send(b"x")
            assert peer.recv(1) == b"x"


def test_a_closed_descriptor_does_no_harm(dog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        gone, other = Holder(), Holder()
        dog.add(gone, ours.fileno())
        ours.close()
        dog.add(other, theirs.fileno())
        for ending in (gone, other):
            ending.end(dog)
        with pytest.raises(OSError, match="Bad file descriptor"):
            dog.add(gone, -1)


def test_it_works_when_no_free_descriptor_is_left(dog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    ending = Holder()
    before, fillers = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    with ours, theirs:
        dog.add(ending, ours.fileno())
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(ours.fileno()))
            ending.end(dog)
            theirs.settimeout(10)
            assert theirs.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for filler in fillers:
                os.close(filler)


def test_a_suspended_machine() -> None:
    """The clock jumps while timers stand still."""
    ahead = 0.0
    dog = Watchdog(lambda: boot_time() + ahead)
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(dog):
        holder = Holder()
        dog.add(holder, ours.fileno())
        assert not holder.shut_called.wait(0.05)
        ahead = 7200.0
        assert holder.shut_called.wait(60)


def test_many_short_watches_wake_its_thread_once() -> None:
    schedule = Schedule()
    assert schedule.added(60.0)
    schedule.wait(0.0, watching=True)
    assert schedule.until == NAP_S
    assert not any(schedule.added(60.0) for _ in range(20))
    schedule.wait(1.0, watching=False)
    assert not schedule.added(60.0)  # although none was left when it began to wait
    assert schedule.added(1.5)
    schedule.looked(math.inf)
    schedule.wait(2.0, watching=False)
    schedule.wait(3.0, watching=False)
    assert schedule.until == math.inf


def test_watches_are_looked_at_when_the_first_of_them_can_end() -> None:
    schedule = Schedule()
    schedule.added(60.0)
    schedule.added(50.0)
    schedule.wait(49.9, watching=True)
    assert 50.0 < schedule.until < 50.2
    assert not schedule.due(50.0)
    assert schedule.due(50.2)
    schedule.looked(60.1)
    assert not schedule.due(60.0)
    schedule.changed()
    assert schedule.due(50.2)


def test_watches_are_not_looked_at_before_the_first_of_them_can_end() -> None:
    """There may be thousands, and the thread wakes every second."""
    turns = 0

    def clock() -> float:
        nonlocal turns
        turns += 1
        return boot_time()

    ours, theirs = socket.socketpair()
    with ours, theirs, closing(Watchdog(clock)) as dog:
        holder = CountedHolder()
        dog.add(holder, ours.fileno())
        reads = holder.reads
        wait_until(lambda: turns >= 5, "the thread's second nap")  # it asks twice before each nap, and once after
        assert holder.reads == reads
        holder.end(dog)
