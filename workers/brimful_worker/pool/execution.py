"""A task in flight: Celery's tracer in a thread of its own, the task's coroutine on the process's loop.

Life of a job, each step under its lock::

    READY -> BODY -> STORING -> DONE   the body ran, the tracer stores its result, the outcome goes to the main thread
      |        |
      +--------+--> ENDED              revoked, over its hard limit, or given back: whatever comes later is dropped

Once the tracer stores a result the job can no longer be ended: a success that is already being written stays one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from enum import Enum
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import SoftTimeLimitExceeded

from brimful.errors import Cancelled, NoWorker
from brimful_worker.pool.interrupt import Interruptible, SoftLimit
from brimful_worker.pool.task_context import carry

_current: ContextVar[Execution | None] = ContextVar("brimful_job", default=None)
_ids = itertools.count(1)


class JobEnded(BaseException):
    """Takes the tracer off its thread. No Exception: the tracer would store it as the task's failure."""


class Phase(Enum):
    READY = "ready"
    BODY = "body"
    STORING = "storing"
    DONE = "done"
    ENDED = "ended"


class Execution:
    """Handle of one task; what the pool returns to Celery."""

    def __init__(
        self,
        task_id: str,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Execution, Any, ExceptionInfo | None], None],
        soft_limit: float | None = None,
    ) -> None:
        """``report(job, result, einfo)`` is called on the job's thread once, at its very end, ended jobs included."""
        self.id = next(_ids)
        self.task_id = task_id
        self.phase = Phase.READY
        self.ended = threading.Event()
        self.soft_limit = soft_limit
        self._target = target
        self._args = args
        self._kwargs = kwargs
        self._loop = loop
        self._report = report
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self._body: Interruptible | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._trace, name=f"task-{task_id[:8]}", daemon=True)
        self._timers: list[asyncio.TimerHandle] = []

    def start(self) -> None:
        self._thread.start()

    # -- from outside, any thread

    def terminate(self, signal: Any = None) -> None:
        """End it and drop what it may still bring; a job that is past its body is left to finish. Idempotent."""
        self.end()

    def end(self) -> bool:
        """As :meth:`terminate`; says whether this call ended it."""
        with self._lock:
            if self.phase not in (Phase.READY, Phase.BODY):
                return False
            in_thread = self.phase is Phase.BODY and self._future is None
            self.phase = Phase.ENDED
            if in_thread:
                self._raise_in_thread(JobEnded)
            elif self._future is not None and not self._future.done():
                self._future.set_exception(JobEnded())  # the tracer's thread is free at once
        self._on_loop(self._cancel)
        return True

    def interrupt(self) -> bool:
        """The soft limit: SoftTimeLimitExceeded inside the body. Says whether there was a body to interrupt."""
        with self._lock:
            if self.phase is not Phase.BODY:
                return False
            if self._future is None:
                self._raise_in_thread(SoftTimeLimitExceeded)
                return True
        self._on_loop(self._cancel_softly)
        return True

    def limits(
        self, soft: float | None, hard: float | None, on_limit: Callable[[Execution, bool, float], None]
    ) -> None:
        """Arm time limits, in seconds from now; ``on_limit(job, soft, seconds)`` is called on the loop's thread."""

        def arm() -> None:
            for seconds, is_soft in ((soft, True), (hard, False)):
                if seconds:
                    self._timers.append(self._loop.call_later(seconds, on_limit, self, is_soft, seconds))

        if soft or hard:
            self._on_loop(arm)

    # -- on the job's own thread

    def _trace(self) -> None:
        _current.set(self)
        result, einfo = None, None
        try:
            result = self._target(*self._args, **self._kwargs)
        except JobEnded:
            pass
        except BaseException:  # a decode error, Reject, SystemExit: the request decides what it means
            einfo = ExceptionInfo()
        with self._lock:
            if self.phase is not Phase.ENDED:
                self.phase = Phase.DONE
        if self._timers:
            self._on_loop(self._disarm)
        self.ended.set()
        self._report(self, result, einfo)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The body is a coroutine: run it on the loop and wait for it here."""
        future: Future[Any] = Future()
        with self._lock:
            if self.phase is Phase.ENDED:
                coroutine.close()
                raise JobEnded
            self._future = future
            self.phase = Phase.BODY
        self._loop.call_soon_threadsafe(self._launch, coroutine, carry(), context=copy_context())
        try:
            return future.result()
        finally:
            self._leave_body()

    def run_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The body is a plain function: it runs right here, in the job's thread."""
        with self._lock:
            if self.phase is Phase.ENDED:
                raise JobEnded
            self.phase = Phase.BODY
        try:
            return function(*args, **kwargs)
        finally:
            self._leave_body()

    def _leave_body(self) -> None:
        with self._lock:
            if self.phase is Phase.ENDED:
                self._raise_in_thread(None)
                raise JobEnded  # a late success is dropped before the tracer stores it
            self.phase = Phase.STORING

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the worker is at its end
            self._loop.call_soon_threadsafe(call)

    def _raise_in_thread(self, error: type[BaseException] | None) -> None:
        """None takes back what was not raised yet."""
        # Reaches Python code only: a body inside a blocking C call sees it when the call returns.
        what = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), what)

    # -- on the loop

    def _launch(self, coroutine: Coroutine[Any, Any, Any], placed: Callable[[], AbstractContextManager[None]]) -> None:
        if self.phase is Phase.ENDED:
            coroutine.close()
            return
        self._body = Interruptible(coroutine)
        self._task = self._loop.create_task(self._drive(self._body, placed), name=self.task_id)

    async def _drive(self, body: Interruptible, placed: Callable[[], AbstractContextManager[None]]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            with placed():
                result = await body
        except SoftLimit:
            error = SoftTimeLimitExceeded(self.soft_limit)
        except asyncio.CancelledError:
            error = Cancelled("the task's coroutine was cancelled from within", "cancelled")
        except BaseException as raised:  # SystemExit too: it must not reach the loop
            error = raised
        future = self._future
        assert future is not None
        with self._lock:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _cancel(self) -> None:
        self._disarm()
        if self._task is not None:
            self._task.cancel()

    def _cancel_softly(self) -> None:
        if self._body is not None and self._task is not None and not self._task.done():
            self._body.instead = SoftLimit(self.soft_limit)
            self._task.cancel()

    def _disarm(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def current_execution() -> Execution | None:
    """The job whose tracer's thread or coroutine this is."""
    return _current.get()


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a task's body to its end; called on a tracer's thread. Raises NoWorker elsewhere."""
    job = _current.get()
    if job is None:
        coroutine.close()
        raise NoWorker("a coroutine task runs only in a brimful worker's pool: start one with `brimful worker`")
    return job.run_coroutine(coroutine)
