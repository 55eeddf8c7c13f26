"""The Celery pool: every task a coroutine on the process's one event loop, Celery's own tracer waiting in a thread.

Load it with ``-P custom`` (``CELERY_CUSTOM_WORKER_POOL=brimful_worker.pool:TaskPool`` where the app is not brimful's).
Results, states, signals and events are Celery's own work, done by the tracer. Acknowledgements and everything else that
touches the broker happen on the main thread, in order.

Private parts of celery 5.7.0:
    celery.concurrency.base.BasePool: _does_debug, _get_info, flush, on_apply, on_close, on_start, on_stop,
        on_terminate, options, register_with_event_loop, terminate_job
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import Reject
from kombu.asynchronous import get_event_loop

from brimful_worker.broker.fairness import fairness
from brimful_worker.broker.qos import lost_count
from brimful_worker.broker.requests import SAMPLING_TASKS, WorkerRequest
from brimful_worker.broker.worker_state import cold_shutdown
from brimful_worker.logs.celery_records import ignore_warnings
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.pool.events import event_batches
from brimful_worker.pool.execution import Execution
from brimful_worker.pool.isolation import TaskIsolation
from brimful_worker.pool.mainthread import MainThreadQueue
from brimful_worker.pool.process import prepare
from brimful_worker.pool.semaphore import PoolSemaphore
from brimful_worker.pool.tracers import TracerThreads

_COLD_S = 4.0
"""How long a cold shutdown waits for cancelled coroutines and last acknowledgements."""
_EXIT_S = 15.0
"""A cold shutdown that takes longer, as when Redis hangs, ends like a kill: no work is lost by that."""
_CLOSE_S = 5.0
"""How long the worker's connections may take to close."""
_FEW = 8
"""Places up to which the next task begins before the last one's result is stored. With more, other requests go on
meanwhile, and the extra changes of threads cost a worker with 64 places a tenth of its tasks a second."""
_STORE_AFTER_S = 0.004
"""Where tasks wait, the next one's request is sent before the result of one that has ended is stored."""
_TICK_S = 0.1

ignore_warnings()  # here, since Celery warns before it makes the pool

Callback = Callable[..., Any] | None


class TaskPool(BasePool):  # type: ignore[misc]  # celery ships no types
    """One event loop, one thread per task in flight. Not signal-safe, and never blocks on dispatch."""

    signal_safe = False
    uses_semaphore = True
    body_can_be_buffer = True

    def __init__(self, limit: int | None = None, **options: Any) -> None:
        super().__init__(limit, **options)
        self.limit = int(limit or 1)
        self._executions: dict[int, Execution] = {}
        self._threads = TracerThreads()
        self._main_thread = MainThreadQueue()
        self._semaphore = PoolSemaphore(self.options["semaphore"], self.limit)
        self._isolation = TaskIsolation(_after)
        self._closing = False
        self._stopped = False
        self._exit_timer: threading.Timer | None = None
        _app, node = self.options.get("initargs") or (None, "")
        self._process = prepare(self.app, node)  # exits with a message when a setting is missing

    # -- life

    def on_start(self) -> None:
        self._does_debug = False  # BasePool would log arguments, prompts among them
        self._resize(0)
        self._process.start()

    def register_with_event_loop(self, loop: Any) -> None:
        self._main_thread.attach(loop)

    def announce_shutdown(self) -> None:
        """Nothing new starts, and running bodies learn that the worker stops. Idempotent."""
        self._closing = True
        self._semaphore.close()
        self._process.stopping()

    def on_close(self) -> None:
        """Warm shutdown begins."""
        self.announce_shutdown()

    def on_stop(self) -> None:
        """Wait until the running tasks have ended and are acknowledged.

        Celery also calls this inside the signal handler of a cold shutdown. There it only cancels: the main thread may
        be anywhere, so callbacks wait for :meth:`on_terminate`.
        """
        if cold_shutdown() and not self._stopped:
            self._end_all()
        else:
            self._finish()

    def on_terminate(self) -> None:
        """Cold shutdown: unfinished tasks end now; their messages are requeued when the channel closes."""
        self._end_all()
        self._finish()

    def flush(self) -> None:
        """The connection was lost, and Celery has just cleared its semaphore."""
        self._isolation.forget_waiting()
        self._semaphore.resync(len(self._executions))

    def _finish(self) -> None:
        if self._stopped:
            return
        deadline = float("inf")
        while True:
            self._main_thread.drain_all()
            if not self._executions or time.monotonic() > deadline:
                break
            if cold_shutdown() and deadline == float("inf"):
                self._end_all()
                deadline = time.monotonic() + _COLD_S
            self._main_thread.fire_timers()
            self._main_thread.arrived.wait(_TICK_S)
        self._stopped = True
        self._process.stop(_CLOSE_S, 1.0 if cold_shutdown() else _CLOSE_S)
        self._main_thread.put(event_batches.flush)
        self._main_thread.drain_all()

    def _end_all(self) -> None:
        if self._exit_timer is None:
            self._exit_timer = threading.Timer(_EXIT_S, os._exit, (1,))
            self._exit_timer.daemon = True
            self._exit_timer.start()
        self.announce_shutdown()  # first: a body that is cancelled then knows that its work is given back
        for execution in tuple(self._executions.values()):
            execution.terminate()

    # -- tasks

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
        accept_callback: Callback = None,
        timeout_callback: Callback = None,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> Execution | None:
        if self._closing:
            return None  # stays unacknowledged, and is requeued when the channel closes
        name = str(args[0]) if args else "unknown"

        def report(execution: Execution, result: Any, einfo: ExceptionInfo | None) -> None:
            self._main_thread.put(self._ended, execution, name, result, einfo, callback, error_callback)

        asked_by = getattr(callback, "__self__", None)
        request = asked_by if isinstance(asked_by, WorkerRequest) else None

        def body_ended(execution: Execution) -> float:
            if self.limit > _FEW:
                return 0.0
            self._main_thread.put(self._body_ended, execution, request)
            return _STORE_AFTER_S if fairness.backlog else 0.0

        loop = self._process.loop.loop
        execution = Execution(target, tuple(args), kwargs or {}, loop, self._threads, report, body_ended)

        def start() -> None:
            if self._closing:
                return  # as above
            self._executions[execution.id] = execution
            metrics.TASKS_RUNNING.inc(name)
            if accept_callback is not None:
                accept_callback(execution.id, time.monotonic())  # may end it, if it was revoked meanwhile
            execution.start(
                soft_timeout or self.options.get("soft_timeout"),
                timeout or self.options.get("timeout"),
                partial(self._limit_reached, timeout_callback),
            )

        if name in SAMPLING_TASKS:
            start()
        else:
            self._isolation.begin(execution.id, lost_count(args[2]) if len(args) > 2 else 0, start)
        return execution

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """End the task that was accepted as ``pid``; its callbacks are never called."""
        execution = self._executions.get(pid)
        if execution is not None:
            execution.terminate()

    def _body_ended(self, execution: Execution, request: Any) -> None:
        """Take the next message before this one's result is stored and it is acknowledged."""
        if execution.id in self._executions and self._semaphore.leave(execution.id) and request is not None:
            request.leave_place()

    def _ended(
        self,
        execution: Execution,
        name: str,
        result: Any,
        einfo: ExceptionInfo | None,
        callback: Callback,
        error_callback: Callback,
    ) -> None:
        del self._executions[execution.id]
        self._isolation.ended(execution.id)
        metrics.TASKS_RUNNING.dec(name)
        metrics.TASKS.inc(name, _state(result, einfo))
        try:
            if einfo is not None:
                if error_callback is not None:
                    error_callback(einfo)
            elif result is not None and callback is not None:
                callback(result)
        finally:
            self._semaphore.release(execution.id)

    def _limit_reached(self, callback: Callback, execution: Execution, soft: bool, seconds: float) -> None:
        """On the loop's thread."""
        if (execution.interrupt() if soft else execution.terminate()) and callback is not None:
            self._main_thread.put(callback, soft, seconds)

    # -- size

    def grow(self, n: int = 1) -> None:
        self._resize(n)

    def shrink(self, n: int = 1) -> None:
        self._resize(-min(n, self.limit - 1))

    def _resize(self, change: int) -> None:
        self.limit += change
        self._main_thread.put(self._semaphore.resize, self.limit + self._process.set_concurrency(self.limit))

    def _get_info(self) -> dict[str, Any]:
        return {
            **super()._get_info(),
            "processes": [os.getpid()],
            "running": len(self._executions),
            "timeouts": [self.options.get("soft_timeout") or 0, self.options.get("timeout") or 0],
        }


def _state(result: Any, einfo: ExceptionInfo | None) -> str:
    """A label of ``brimful_tasks_total``, from what the tracer returned."""
    if einfo is not None:
        return "failed"
    if result is None:
        return "ended"
    failed, value, _runtime = result
    if not failed:
        return "succeeded"
    return "given back" if isinstance(getattr(value, "exception", None), Reject) else "failed"


def _after(seconds: float, call: Callable[[], None]) -> None:
    if (hub := get_event_loop()) is not None:
        hub.call_later(seconds, call)  # type: ignore[no-untyped-call]
