"""The Celery pool: every task a coroutine on the process's one event loop, Celery's own tracer waiting in a thread.

Load it with ``-P custom`` (``CELERY_CUSTOM_WORKER_POOL=brimful_worker.pool:TaskPool`` where the app is not brimful's).
Results, states, signals and events are Celery's own work, done by the tracer; acknowledgements and everything else that
touches the broker happen on the main thread, in order.
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

from brimful_worker import logs
from brimful_worker.broker.worker_state import cold_shutdown
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.pool.adopt import adopt
from brimful_worker.pool.execution import Execution
from brimful_worker.pool.loop import LoopThread
from brimful_worker.pool.mainthread import MainThread
from brimful_worker.pool.process import prepare
from brimful_worker.pool.semaphore import Places

_COLD_S = 4.0
"""How long a cold shutdown waits for cancelled coroutines and last acknowledgements."""
_LAST_S = 15.0
"""A cold shutdown that has not ended by then (Redis hangs, say) ends like a kill, which everything here survives."""
_CLOSE_S = 5.0
"""How long the worker's connections may take to close."""
_TICK_S = 0.1

logs.ignore_warnings()  # here, since Celery warns before it makes the pool

Callback = Callable[..., Any] | None


class TaskPool(BasePool):  # type: ignore[misc]  # celery ships no types
    """One event loop, one thread per task in flight. Not signal-safe, and never blocks on dispatch."""

    signal_safe = False
    uses_semaphore = True
    task_join_will_block = True
    body_can_be_buffer = True

    def __init__(self, limit: int | None = None, **options: Any) -> None:
        super().__init__(limit, **options)
        self.limit = int(limit or 1)
        self._jobs: dict[int, tuple[Execution, str, Callback, Callback]] = {}
        self._main = MainThread()
        self._loop = LoopThread()
        self._room = Places(options.get("semaphore"), self.limit)
        self._closing = False
        self._stopped = False
        self._last: threading.Timer | None = None
        _app, node = self.options.get("initargs") or (None, "")
        self._worker = prepare(self.app, node)  # exits with a message when a setting is missing

    # -- life

    def on_start(self) -> None:
        adopt(self.app)
        self._worker.resize(self.limit)
        self._main_ident = threading.get_ident()
        self._loop.start()
        self._worker.start(self._loop)

    def register_with_event_loop(self, loop: Any) -> None:
        self._main.attach(loop)

    def on_close(self) -> None:
        """Warm shutdown begins: nothing new is started, bodies are told that the worker stops."""
        self._closing = True
        self._room.close()
        if self._loop.alive:
            self._worker.stopping(self._loop)

    def on_stop(self) -> None:
        """Wait until the running tasks have ended and are acknowledged.

        Celery also calls this inside the signal handler of a cold shutdown. There it only cancels: the main thread may
        be anywhere, so callbacks wait for :meth:`on_terminate`.
        """
        if cold_shutdown() and not self._stopped:
            self._end_all()
            self._bound()
            return
        self._finish()

    def on_terminate(self) -> None:
        """Cold shutdown: unfinished tasks end now; their messages go back to the queue when the channel closes."""
        self._closing = True
        self._room.close()
        self._bound()
        self._end_all()
        self._finish()

    def flush(self) -> None:
        """The connection was lost, and Celery has just reset its semaphore: running tasks hold their places on."""
        self._room.recount(len(self._jobs))

    def _finish(self) -> None:
        if self._stopped:
            return
        deadline = float("inf")
        while True:
            self._main.drain_all()
            if not self._jobs or time.monotonic() > deadline:
                break
            if cold_shutdown() and deadline == float("inf"):
                self._bound()
                self._end_all()
                deadline = time.monotonic() + _COLD_S
            self._main.fire_timers()
            self._main.arrived.wait(_TICK_S)
        self._stopped = True
        self._worker.stop(self._loop, _CLOSE_S)
        self._loop.stop(1.0 if cold_shutdown() else _CLOSE_S)
        self._main.drain_all()

    def _bound(self) -> None:
        if self._last is None:
            self._last = threading.Timer(_LAST_S, os._exit, (1,))
            self._last.daemon = True
            self._last.start()

    def _end_all(self) -> None:
        if self._loop.alive:
            self._worker.stopping(self._loop)  # before the cancellations: they mean that the work is given back
        for job, *_ in tuple(self._jobs.values()):
            job.end()

    # -- jobs

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
        correlation_id: str | None = None,
        **_: Any,
    ) -> Execution | None:
        if self._closing:
            return None  # stays unacknowledged, and goes back when the channel closes
        soft = soft_timeout or self.options.get("soft_timeout")
        hard = timeout or self.options.get("timeout")
        name = str(args[0]) if args else "unknown"
        job = Execution(str(correlation_id), target, tuple(args), kwargs or {}, self._loop.loop, self._report, soft)
        self._jobs[job.id] = job, name, callback, error_callback
        metrics.TASKS_RUNNING.inc(name)
        if accept_callback is not None:
            accept_callback(job.id, time.monotonic())  # may end it, if it was revoked meanwhile
        job.limits(soft, hard, partial(self._on_limit, timeout_callback))
        job.start()
        return job

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """End the job that was accepted as ``pid``; its callbacks are never called."""
        entry = self._jobs.get(pid)
        if entry is not None:
            entry[0].end()

    def _report(self, job: Execution, result: Any, einfo: ExceptionInfo | None) -> None:
        self._main.put(self._done, job, result, einfo)  # from the job's thread

    def _done(self, job: Execution, result: Any, einfo: ExceptionInfo | None) -> None:
        _job, name, callback, error_callback = self._jobs.pop(job.id)
        metrics.TASKS_RUNNING.dec(name)
        metrics.TASKS.inc(name, _state(result, einfo))
        try:
            if einfo is not None:
                if error_callback is not None:
                    error_callback(einfo)
            elif result is not None and callback is not None:
                callback(result)
        finally:
            self._room.leave()

    def _on_limit(self, callback: Callback, job: Execution, soft: bool, seconds: float) -> None:
        """On the loop's thread."""
        if (job.interrupt() if soft else job.end()) and callback is not None:
            self._main.put(callback, soft, seconds)

    # -- size

    def grow(self, n: int = 1) -> None:
        self.limit += n
        self._worker.resize(self.limit)
        self._on_main(self._room.grow, n)

    def shrink(self, n: int = 1) -> None:
        n = min(n, self.limit - 1)
        self.limit -= n
        self._worker.resize(self.limit)
        self._on_main(self._room.shrink, n)

    def _on_main(self, call: Callable[[int], None], n: int) -> None:
        if threading.get_ident() == self._main_ident:
            call(n)
        else:
            self._main.put(call, n)

    @property
    def num_processes(self) -> int:
        return self.limit

    def start(self) -> None:
        super().start()
        self._does_debug = False  # BasePool would log arguments, prompts among them

    def _get_info(self) -> dict[str, Any]:
        return {
            **super()._get_info(),
            "max-concurrency": self.limit,
            "processes": [os.getpid()],
            "running": len(self._jobs),
            "timeouts": [self.options.get("soft_timeout") or 0, self.options.get("timeout") or 0],
        }


def _state(result: Any, einfo: ExceptionInfo | None) -> str:
    """For the count: what became of a job, by what its tracer returned."""
    if einfo is not None:
        return "failed"
    if result is None:
        return "ended"
    failed, value, _runtime = result
    if not failed:
        return "succeeded"
    return "given back" if isinstance(getattr(value, "exception", None), Reject) else "failed"
