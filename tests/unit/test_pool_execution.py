"""One job: its coroutine, its ends, and what is dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from brimful.errors import Cancelled, NoWorker
from brimful_worker.pool.execution import Execution, Phase, current_execution, run_coroutine
from brimful_worker.pool.loop import LoopThread
from support.waiting import wait_until


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    thread.start()
    yield thread
    thread.stop(5)
    assert not thread.alive


class Reports:
    """What a job's end was told."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, job: Execution, result: Any, einfo: Any) -> None:
        self.result = result
        self.error = None if einfo is None else getattr(einfo.exception, "exc", einfo.exception)


def job(loop: LoopThread, target: Callable[..., Any], soft: float | None = None) -> tuple[Execution, Reports]:
    reports = Reports()
    return Execution("id", target, (), {}, loop.loop, reports, soft), reports


def over(one: Execution) -> None:
    assert one.ended.wait(10)
    one._thread.join(10)


def test_a_coroutine_runs_on_the_loop_and_returns_to_its_thread(loop: LoopThread) -> None:
    async def body() -> tuple[Any, bool]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), current_execution() is one

    one, reports = job(loop, lambda: run_coroutine(body()))
    one.start()
    over(one)
    assert reports.result == (loop.loop, True)
    assert one.phase is Phase.DONE


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_coroutine_raises_comes_out_and_the_loop_lives(loop: LoopThread, error: BaseException) -> None:
    async def body() -> None:
        raise error

    one, reports = job(loop, lambda: run_coroutine(body()))
    one.start()
    over(one)
    assert reports.error is error
    assert loop.alive


def test_a_subtasks_system_exit_does_not_end_the_loop(loop: LoopThread) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    async def body() -> str:
        child = asyncio.ensure_future(leave())
        await asyncio.wait([child])
        with pytest.raises(SystemExit):
            child.result()
        return "on"

    one, reports = job(loop, lambda: run_coroutine(body()))
    one.start()
    over(one)
    assert reports.result == "on"


def test_a_coroutine_that_cancels_itself_fails(loop: LoopThread) -> None:
    async def body() -> None:
        raise asyncio.CancelledError

    one, reports = job(loop, lambda: run_coroutine(body()))
    one.start()
    over(one)
    assert isinstance(reports.error, Cancelled)


def test_ending_frees_the_thread_at_once_and_drops_a_late_success(loop: LoopThread) -> None:
    let_go, finished = threading.Event(), threading.Event()

    async def body() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.to_thread(let_go.wait, 10)
        finished.set()
        return "late"

    one, reports = job(loop, lambda: run_coroutine(body()))
    one.start()
    wait_until(lambda: one._task, "the body")
    assert one.end()
    over(one)  # while the coroutine still cleans up
    let_go.set()
    assert finished.wait(10)
    assert reports.result is None
    assert reports.error is None
    assert not one.end()


def test_a_job_ended_before_it_began_never_runs_its_body(loop: LoopThread) -> None:
    ran: list[int] = []

    async def body() -> None:
        ran.append(1)

    one, reports = job(loop, lambda: run_coroutine(body()))
    assert one.end()
    one.start()
    over(one)
    assert (ran, reports.result, reports.error) == ([], None, None)


def test_a_job_that_stores_its_result_is_left_to_finish(loop: LoopThread) -> None:
    storing, stored = threading.Event(), threading.Event()

    async def body() -> int:
        return 7

    def trace() -> int:
        value = run_coroutine(body())
        storing.set()
        assert stored.wait(10)
        return int(value)

    one, reports = job(loop, trace)
    one.start()
    assert storing.wait(10)
    assert not one.end()
    stored.set()
    over(one)
    assert reports.result == 7


def test_the_soft_limit_is_caught_inside_and_life_goes_on(loop: LoopThread) -> None:
    told: list[tuple[bool, float]] = []

    def on_limit(one: Execution, soft: bool, seconds: float) -> None:
        told.append((soft, seconds))
        one.interrupt() if soft else one.end()

    async def body() -> str:
        try:
            async with asyncio.Lock():
                await asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))
        except SoftTimeLimitExceeded:
            await asyncio.sleep(0.001)  # not cancelled any more
            return "soft"
        return "no"

    one, reports = job(loop, lambda: run_coroutine(body()), soft=0.05)
    one.limits(0.05, None, on_limit)
    one.start()
    over(one)
    assert reports.result == "soft"
    assert told == [(True, 0.05)]


def test_limits_are_disarmed_by_the_end(loop: LoopThread) -> None:
    async def body() -> None: ...

    one, _ = job(loop, lambda: run_coroutine(body()))
    one.limits(30, 60, lambda *_: None)
    wait_until(lambda: len(one._timers) == 2, "the timers")
    one.start()
    over(one)
    wait_until(lambda: not one._timers, "the timers to be gone")


@pytest.mark.parametrize(("how", "error"), [("interrupt", SoftTimeLimitExceeded), ("end", type(None))])
def test_a_plain_function_is_reached_in_its_thread(
    loop: LoopThread, how: str, error: type[BaseException] | type[None]
) -> None:
    began = threading.Event()

    def spin() -> None:
        began.set()
        while True:
            threading.Event().wait(0.001)

    one, reports = job(loop, lambda: one.run_function(spin, (), {}))
    one.start()
    assert began.wait(10)
    assert getattr(one, how)()
    over(one)
    assert isinstance(reports.error, error)


def test_a_coroutine_task_outside_a_pool_says_where_it_belongs() -> None:
    async def body() -> None: ...

    with pytest.raises(NoWorker, match="brimful worker"):
        run_coroutine(body())
