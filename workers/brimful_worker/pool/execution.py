"""A task in flight: Celery's tracer in a thread, the task's coroutine on the process's event loop.

Phases, each entered under the lock::

    READY -> BODY -> STORING -> DONE   the body ran, the tracer stores its result, the pool gets it
      |        |
      +--------+--> ENDED              revoked, over its hard limit, or given back: what comes later is dropped

Once the tracer stores a result the execution can no longer be ended: a success that is being written stays one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from enum import Enum
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded

from brimful.errors import Cancelled, NoWorker
from brimful_worker.pool.interrupt import Interruptible, SoftLimit
from brimful_worker.pool.task_context import carry
from brimful_worker.pool.tracers import TracerThreads

_current: ContextVar[Execution | None] = ContextVar("brimful_execution", default=None)
_ids = itertools.count(1)


class ExecutionEnded(BaseException):
    """Takes the tracer off its thread. Not an Exception, which the tracer would store as the task's failure."""


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
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        threads: TracerThreads,
        report: Callable[[Execution, Any, ExceptionInfo | None], None],
        body_ended: Callable[[Execution], float] = lambda _: 0.0,
    ) -> None:
        """``report(execution, result, einfo)`` is called once, at the very end on the thread, also when ended.

        ``body_ended(execution)`` is called once its body has ended, before the tracer stores the result. Not where the
        body was never begun, and perhaps not where it is ended from outside. It returns for how many seconds the result
        of a coroutine waits, while what is more urgent is done.
        """
        self.id = next(_ids)
        self.phase = Phase.READY
        self._trace_task = functools.partial(target, *args, **kwargs)
        self._loop = loop
        self._report = report
        self._body_ended = body_ended
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self._body: Interruptible | None = None
        self._task: asyncio.Task[None] | None = None
        self._threads = threads
        self._thread_id = 0
        self._limited = False
        self._soft_s: float | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def start(
        self,
        soft_s: float | None = None,
        hard_s: float | None = None,
        on_limit: Callable[[Execution, bool, float], None] = lambda *_: None,
    ) -> None:
        """Start the tracer and the time limits, seconds from now.

        ``on_limit(execution, soft, seconds)`` is called on the loop's thread when one is reached.
        """
        self._soft_s = soft_s

        def arm() -> None:
            for seconds, soft in ((soft_s, True), (hard_s, False)):
                if seconds:
                    self._timers.append(self._loop.call_later(seconds, on_limit, self, soft, seconds))

        if soft_s or hard_s:
            self._limited = True
            self._on_loop(arm)
        self._threads.run(self._trace)

    # -- from outside, any thread

    def terminate(self, signal: Any = None) -> bool:
        """End it and drop its result. Returns False when it is past its body, and left to finish. Idempotent."""
        with self._lock:
            if self.phase not in (Phase.READY, Phase.BODY):
                return False
            in_thread = self.phase is Phase.BODY and self._future is None
            self.phase = Phase.ENDED
            if in_thread:
                self._raise_in_thread(ExecutionEnded)
            elif self._future is not None and not self._future.done():
                self._future.set_exception(ExecutionEnded())  # the tracer's thread is free at once
        self._on_loop(self._cancel)
        return True

    def interrupt(self) -> bool:
        """Raise SoftTimeLimitExceeded inside the body. Returns whether there was a body to interrupt."""
        with self._lock:
            if self.phase is not Phase.BODY:
                return False
            if self._future is None:
                self._raise_in_thread(SoftTimeLimitExceeded)
                return True
        self._on_loop(self._cancel_softly)
        return True

    # -- on its own thread

    def _trace(self) -> None:
        self._thread_id = threading.get_ident()
        _current.set(self)
        result, einfo = None, None
        try:
            result = self._trace_task()
        except ExecutionEnded:
            pass
        except BaseException:  # a decode error, Reject, SystemExit: Celery's request decides what it means
            einfo = ExceptionInfo()
        with self._lock:
            if self.phase is not Phase.ENDED:
                self.phase = Phase.DONE
        if self._limited:
            self._on_loop(self._disarm)
        self._report(self, result, einfo)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The body is a coroutine: run it on the loop and wait for it here."""
        future: Future[Any] = Future()
        with self._lock:
            if self.phase is Phase.ENDED:
                coroutine.close()
                raise ExecutionEnded
            self._future = future
            self.phase = Phase.BODY
        self._loop.call_soon_threadsafe(self._launch, coroutine, carry(), context=copy_context())
        try:
            return future.result()
        finally:
            self._leave_body()

    def run_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The body is a plain function: it runs in this thread, where it can be ended."""
        with self._lock:
            if self.phase is Phase.ENDED:
                raise ExecutionEnded
            self.phase = Phase.BODY
        try:
            return function(*args, **kwargs)
        finally:
            self._body_ended(self)
            self._leave_body()

    def _leave_body(self) -> None:
        with self._lock:
            if self.phase is Phase.ENDED:
                self._raise_in_thread(None)
                raise ExecutionEnded  # a late success is dropped before the tracer stores it
            self.phase = Phase.STORING

    def _on_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends
            self._loop.call_soon_threadsafe(call)

    def _raise_in_thread(self, error: type[BaseException] | None) -> None:
        """None takes back what was not raised yet."""
        # Reaches Python code only: a body inside a blocking C call sees it when the call returns.
        what = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), what)

    # -- on the loop

    def _launch(self, coroutine: Coroutine[Any, Any, Any], carried: Callable[[], AbstractContextManager[None]]) -> None:
        if self.phase is Phase.ENDED:
            coroutine.close()
            return
        self._body = Interruptible(coroutine)
        self._task = self._loop.create_task(self._drive(self._body, carried))

    async def _drive(self, body: Interruptible, carried: Callable[[], AbstractContextManager[None]]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            with carried():
                result = await body
        except SoftLimit:
            error = SoftTimeLimitExceeded(self._soft_s)
        except asyncio.CancelledError:
            error = Cancelled("the task's coroutine was cancelled from within", "cancelled")
        except BaseException as raised:  # SystemExit too: it must not reach the loop
            error = raised
        later_s = self._body_ended(self)
        with self._lock:
            if self.phase is not Phase.BODY:
                return
            self.phase = Phase.STORING
        if later_s:
            self._loop.call_later(later_s, self._wake_tracer, result, error)
        else:
            self._wake_tracer(result, error)

    def _wake_tracer(self, result: Any, error: BaseException | None) -> None:
        assert self._future is not None
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    def _cancel(self) -> None:
        self._disarm()
        if self._task is not None:
            self._task.cancel()

    def _cancel_softly(self) -> None:
        if self._body is not None and self._task is not None and not self._task.done():
            self._body.replacement = SoftLimit(self._soft_s)
            self._task.cancel()

    def _disarm(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a task's body to its end; called on a tracer's thread. Raises NoWorker elsewhere."""
    execution = _current.get()
    if execution is None:
        coroutine.close()
        raise NoWorker("a coroutine task runs only in a brimful worker's pool: start one with `brimful worker`")
    return execution.run_coroutine(coroutine)


def adapt_tasks(app: Celery) -> None:
    """Let the pool run the bodies of any app's tasks. Called once, before Celery builds its tracers.

    An ``async def`` body becomes callable for the tracer, and a plain one can be ended.
    """
    for task in app.tasks.values():
        if task.name.startswith("celery.") or getattr(task.run, "_brimful", False):
            continue
        if any("__call__" in kind.__dict__ for kind in type(task).__mro__ if kind not in (Task, object)):
            continue  # a class that calls its body itself, as brimful's own do
        task.run = _callable(task.run)


def _callable(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(run):
            return run_coroutine(run(*args, **kwargs))
        execution = _current.get()
        return run(*args, **kwargs) if execution is None else execution.run_function(run, args, kwargs)

    call._brimful = True  # type: ignore[attr-defined]
    return call
