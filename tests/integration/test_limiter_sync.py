"""The limiter for threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from brimful_worker.admission import LeaseLost, StaleGrant, mark_clean
from brimful_worker.admission.lease import current_lease
from brimful_worker.limiter import InvalidLimit, Limiter, LimiterClosed, SlotTimeout, SyncLimiter, SyncPermit, Window
from brimful_worker.limiter.limiter_thread import LimiterThread
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until

NAME = "service"


@contextmanager
def limiter(valkey: Valkey, *tags: str, **limits: Any) -> Iterator[SyncLimiter]:
    with redis.Redis.from_url(valkey.url) as client:
        for tag in (NAME, *tags):
            mark_clean(client, tag)
    one = SyncLimiter(valkey.url, NAME, **limits)
    try:
        yield one
    finally:
        one.close()


def test_threads_share_the_slots(valkey: Valkey) -> None:
    with limiter(valkey, slots=2) as one, ThreadPoolExecutor(6) as threads:
        lock, now, most = threading.Lock(), 0, 0
        together = threading.Barrier(2)  # two are inside at once, each time

        def work(_: int) -> None:
            nonlocal now, most
            with one as lease:
                assert current_lease.get() is lease
                with lock:
                    now += 1
                    most = max(most, now)
                together.wait(60)
                with lock:
                    now -= 1
            assert current_lease.get() is None

        list(threads.map(work, range(20)))
        assert (most, one.held) == (2, 0)


def test_windows_timeouts_and_try_acquire(valkey: Valkey) -> None:
    windows = [Window(1, 50), Window(9, 60)]
    with limiter(valkey, f"{NAME}:50s", slots=1, windows=windows) as one:
        with one.slot("interactive", timeout_s=60) as lease:
            lease.sent()
        with pytest.raises(SlotTimeout), one.slot(timeout_s=0.1):
            pytest.fail("a second start within 50 s")
        assert one.try_acquire() is None


def test_a_permit_may_be_released_by_another_thread(valkey: Valkey) -> None:
    with limiter(valkey, slots=1) as one:
        permit = one.slot(timeout_s=60).acquire()
        assert one.try_acquire() is None
        with ThreadPoolExecutor(1) as threads:
            threads.submit(permit.release).result()
        permit.release()
        wait_until(lambda: (found := one.try_acquire()) is not None and (found.release(), True)[1], "the slot is free")


def test_a_block_that_raises_keeps_its_slot_for_the_cooldown(valkey: Valkey) -> None:
    with limiter(valkey, slots=1, cooldown_s=30) as one:
        with pytest.raises(ValueError, match="mine"), one:
            raise ValueError("mine")
        assert one.try_acquire() is None


def test_a_decorated_function(valkey: Valkey) -> None:
    with limiter(valkey, slots=1) as one:
        tries: list[int] = []

        @one.limited(timeout_s=60)
        def double(number: int) -> int:
            tries.append(number)
            lease = current_lease.get()
            assert lease is not None
            if len(tries) == 1:  # its grant came too late: nothing was sent
                lease.given_back = True
                raise StaleGrant("too late")
            return 2 * number

        assert [double(1), double(2)] == [2, 4]
        assert tries == [1, 1, 2]


def test_the_end_of_a_limiter(valkey: Valkey) -> None:
    with limiter(valkey, slots=1) as one, ThreadPoolExecutor(3) as threads:
        held = threading.Event()
        leave = threading.Event()

        def hold() -> None:
            with one:
                held.set()
                assert leave.wait(60)

        def wait() -> None:
            with one:
                pytest.fail("the slot is taken")

        holding = threads.submit(hold)
        assert held.wait(60)
        waiting = [threads.submit(wait) for _ in range(2)]
        wait_until(lambda: one.waiting == 2, "two wait")
        one.close()
        leave.set()
        for future in waiting:
            with pytest.raises(LimiterClosed):
                future.result(60)
        with pytest.raises(LeaseLost):
            holding.result(60)
        with pytest.raises(LimiterClosed), one:
            pytest.fail("it is closed")


def test_a_lent_client(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        mark_clean(client, NAME)
        one = SyncLimiter(client, NAME, slots=1)
        with one.slot(timeout_s=60):
            assert client.zcard(f"brimful:{{{NAME}}}:slots") == 1
        one.close()
        assert client.ping()


def test_a_program_that_does_not_close_it_ends_and_its_slot_ends_with_its_lease(valkey: Valkey) -> None:
    code = (
        "import sys\nfrom brimful_worker.limiter import SyncLimiter\n"
        "one = SyncLimiter(sys.argv[1], 'service', slots=1, lease_s=4)\none.slot(timeout_s=60).acquire()\nprint('held')"
    )
    with limiter(valkey, slots=1, lease_s=4) as one:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, valkey.url], capture_output=True, text=True, timeout=60
        )
        assert (done.stdout, done.stderr) == ("held\n", "")
        with redis.Redis.from_url(valkey.url) as client:
            assert client.zcard(f"brimful:{{{NAME}}}:heard") == 0, "it has left"
        with one.slot(timeout_s=60):
            pass


_FORKS = """
import os, sys
from brimful_worker.limiter import SyncLimiter

limiter = SyncLimiter(sys.argv[1], "service", slots=1, timeout_s=60)
with limiter:
    pass
child = os.fork()
with limiter:
    print(limiter.held, flush=True)
if child:
    os.waitpid(child, 0)
"""


def test_a_child_of_fork_has_a_thread_of_its_own(valkey: Valkey) -> None:
    with limiter(valkey, slots=1):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _FORKS, valkey.url], capture_output=True, text=True, timeout=100
        )
    assert (done.stdout, done.stderr) == ("1\n1\n", "")


def test_a_slot_that_is_asked_for_while_it_closes_is_refused(valkey: Valkey) -> None:
    thread = LimiterThread(Limiter(valkey.url, NAME, slots=1))
    slot = thread.limiter.slot()  # a thread has come this far when another one closes it
    thread.stop()
    with pytest.raises(LimiterClosed):
        SyncPermit(thread, slot)
    with pytest.raises(LimiterClosed):
        thread.call(thread.limiter.start())


def test_arguments_are_checked_at_once() -> None:
    one = SyncLimiter("redis://127.0.0.1:1", NAME, windows=[Window(tokens=100)])
    with pytest.raises(InvalidLimit, match="tokens = 101"):
        one.slot(tokens=101)
    with pytest.raises(InvalidLimit, match="timeout_s = -1"):
        one.slot(timeout_s=-1)
    with pytest.raises(ValueError, match="sometimes"):
        one.slot("sometimes")
