"""One execution: its coroutine, its ends, and what is dropped."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from queue import Queue
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from brimful.errors import Cancelled, NoWorker
from brimful_worker.pool.execution import Execution, Phase, adapt_tasks, run_coroutine
from brimful_worker.pool.loop import LoopThread
from brimful_worker.pool.tracers import TracerThreads
from support.waiting import wait_until


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    thread.start()
    yield thread
    thread.stop(5)
    assert not thread.alive


class Report:
    """What an execution reported at its end."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._came = threading.Event()

    def __call__(self, execution: Execution, result: Any, einfo: Any) -> None:
        self.result = result
        self.error = None if einfo is None else getattr(einfo.exception, "exc", einfo.exception)
        self._came.set()

    def wait(self) -> None:
        assert self._came.wait(60)


class Timers:
    """A loop that notes its timers: their seconds, their handles, and what they call."""

    def __init__(self, loop: LoopThread) -> None:
        self.waiting: list[tuple[float, asyncio.TimerHandle, Callable[[], object]]] = []
        self._real = loop.loop
        self.loop: Any = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        handle = self._real.call_later(seconds, callback, *args)
        self.waiting.append((seconds, handle, functools.partial(callback, *args)))
        return handle


def execute(loop: LoopThread, target: Callable[..., Any]) -> tuple[Execution, Report]:
    report = Report()
    return Execution(target, (), {}, loop.loop, TracerThreads(), report), report


def test_a_coroutine_runs_on_the_loop_and_returns_to_its_thread(loop: LoopThread) -> None:
    async def body() -> Any:
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    one, report = execute(loop, lambda: (threading.get_ident(), run_coroutine(body()), threading.get_ident()))
    one.start()
    report.wait()
    before, running, after = report.result
    assert before == after != threading.get_ident()
    assert running is loop.loop
    assert one.phase is Phase.DONE


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_coroutine_raises_comes_out_and_the_loop_lives(loop: LoopThread, error: BaseException) -> None:
    async def body() -> None:
        raise error

    one, report = execute(loop, lambda: run_coroutine(body()))
    one.start()
    report.wait()
    assert report.error is error
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

    one, report = execute(loop, lambda: run_coroutine(body()))
    one.start()
    report.wait()
    assert report.result == "on"


def test_a_coroutine_that_cancels_itself_fails(loop: LoopThread) -> None:
    async def body() -> None:
        raise asyncio.CancelledError

    one, report = execute(loop, lambda: run_coroutine(body()))
    one.start()
    report.wait()
    assert isinstance(report.error, Cancelled)


def test_termination_frees_the_thread_at_once_and_drops_a_late_success(loop: LoopThread) -> None:
    begun, let_go, finished = threading.Event(), threading.Event(), threading.Event()

    async def body() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.to_thread(let_go.wait, 10)
        finished.set()
        return "late"

    one, report = execute(loop, lambda: run_coroutine(body()))
    one.start()
    assert begun.wait(60)
    assert one.terminate()
    report.wait()  # while the coroutine still cleans up
    let_go.set()
    assert finished.wait(60)
    assert report.result is None
    assert report.error is None
    assert not one.terminate()


def test_an_execution_terminated_before_its_start_never_runs_its_body(loop: LoopThread) -> None:
    ran: list[int] = []

    async def body() -> None:
        ran.append(1)

    one, report = execute(loop, lambda: run_coroutine(body()))
    assert one.terminate()
    one.start()
    report.wait()
    assert (ran, report.result, report.error) == ([], None, None)


def test_an_execution_that_stores_its_result_is_left_to_finish(loop: LoopThread) -> None:
    storing, stored = threading.Event(), threading.Event()

    async def body() -> int:
        return 7

    def trace() -> int:
        value = run_coroutine(body())
        storing.set()
        assert stored.wait(60)
        return int(value)

    one, report = execute(loop, trace)
    one.start()
    assert storing.wait(60)
    assert not one.terminate()
    stored.set()
    report.wait()
    assert report.result == 7


def test_the_end_of_the_body_comes_before_its_result_is_stored(loop: LoopThread) -> None:
    order: list[str] = []

    async def body() -> int:
        order.append("body")
        return 7

    def trace() -> int:
        value = int(run_coroutine(body()))
        order.append("stored")
        return value

    def body_ended(ended: Execution) -> float:
        assert ended is one
        order.append("ended")
        return 0.001

    report = Report()
    one = Execution(trace, (), {}, loop.loop, TracerThreads(), report, body_ended)
    one.start()
    report.wait()
    assert report.result == 7
    assert order == ["body", "ended", "stored"]


def test_a_result_that_waits_to_be_stored_is_kept(loop: LoopThread) -> None:
    timers = Timers(loop)

    async def body() -> int:
        return 7

    report = Report()
    one = Execution(lambda: run_coroutine(body()), (), {}, timers.loop, TracerThreads(), report, lambda _: 3600.0)
    one.start()
    wait_until(lambda: timers.waiting, "the body to have ended")
    assert one.phase is Phase.STORING
    assert not one.terminate()
    assert not one.interrupt()
    assert report.result is None, "it waits"
    [(seconds, _, call)] = timers.waiting
    assert seconds == 3600
    loop.loop.call_soon_threadsafe(call)
    report.wait()
    assert report.result == 7


def test_a_body_that_catches_its_soft_limit_goes_on(loop: LoopThread) -> None:
    reached: list[tuple[bool, float]] = []

    def on_limit(one: Execution, soft: bool, seconds: float) -> None:
        reached.append((soft, seconds))
        one.interrupt() if soft else one.terminate()

    async def body() -> str:
        try:
            async with asyncio.Lock():
                await asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))
        except SoftTimeLimitExceeded:
            await asyncio.sleep(0.001)  # not cancelled any more
            return "soft"
        return "no"

    one, report = execute(loop, lambda: run_coroutine(body()))
    one.start(0.05, None, on_limit)
    report.wait()
    assert report.result == "soft"
    assert reached == [(True, 0.05)]


def test_the_end_disarms_the_time_limits(loop: LoopThread) -> None:
    timers = Timers(loop)

    def trace() -> str:
        wait_until(lambda: len(timers.waiting) == 2, "the timers")
        return "traced"

    report = Report()
    Execution(trace, (), {}, timers.loop, TracerThreads(), report).start(30, 60)
    report.wait()
    assert report.result == "traced"
    assert [seconds for seconds, *_ in timers.waiting] == [30, 60]
    wait_until(lambda: all(timer.cancelled() for _, timer, _ in timers.waiting), "the timers to be gone")


@pytest.mark.parametrize(("how", "error"), [("interrupt", SoftTimeLimitExceeded), ("terminate", type(None))])
def test_a_plain_function_is_reached_in_its_thread(
    loop: LoopThread, how: str, error: type[BaseException] | type[None]
) -> None:
    began = threading.Event()

    def spin() -> None:
        began.set()
        while True:
            threading.Event().wait(0.001)

    one, report = execute(loop, lambda: one.run_function(spin, (), {}))
    one.start()
    assert began.wait(60)
    assert getattr(one, how)()
    report.wait()
    assert isinstance(report.error, error)


def test_a_coroutine_task_outside_a_pool_says_where_it_belongs() -> None:
    async def body() -> None: ...

    with pytest.raises(NoWorker, match="brimful worker"):
        run_coroutine(body())


def test_a_free_thread_takes_the_next_execution(loop: LoopThread) -> None:
    threads, names = TracerThreads(), list[str]()
    seen: ContextVar[str] = ContextVar("seen", default="nothing")

    def target() -> str:
        names.append(threading.current_thread().name)
        before = seen.get()
        seen.set("something")
        return before

    def is_taken_again() -> bool:
        report = Report()
        Execution(target, (), {}, loop.loop, threads, report).start()
        report.wait()
        assert report.result == "nothing"
        return names[-1] in names[:-1]

    wait_until(is_taken_again, "a thread to be taken again")


def test_executions_at_once_have_threads_of_their_own(loop: LoopThread) -> None:
    threads, together = TracerThreads(), threading.Barrier(5, timeout=10)
    reports = [Report() for _ in range(5)]
    for report in reports:
        Execution(together.wait, (), {}, loop.loop, threads, report).start()
    for report in reports:
        report.wait()
    assert sorted(report.result for report in reports) == list(range(5))


def test_an_ended_body_leaves_its_thread_fit_for_the_next(loop: LoopThread) -> None:
    threads, begun, go = TracerThreads(), threading.Event(), threading.Event()
    ended, nexts = list[str](), list[Report]()
    with Celery("tasks", set_as_current=False) as app:

        @app.task
        def body() -> None:
            ended.append(threading.current_thread().name)
            begun.set()
            while not go.wait(0.01):
                pass

        adapt_tasks(app)
    report = Report()
    execution = Execution(body.run, (), {}, loop.loop, threads, report)
    execution.start()
    assert begun.wait(60)
    assert execution.terminate()
    report.wait()
    assert (report.result, report.error) == (None, None)

    def is_taken_again() -> bool:
        """By one of executions that stay where they are until the last has begun."""
        name: Queue[str] = Queue()

        def stay() -> str:
            name.put(threading.current_thread().name)
            assert go.wait(60)
            return "done"

        nexts.append(Report())
        Execution(stay, (), {}, loop.loop, threads, nexts[-1]).start()
        return [name.get(timeout=60)] == ended

    wait_until(is_taken_again, "the thread to be taken again")
    go.set()
    for each in nexts:
        each.wait()
        assert (each.result, each.error) == ("done", None)
