"""What a worker process runs beside its pool: the event loop, the port for task bodies, and the renewal of messages."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from celery import Celery
from kombu.utils.imports import symbol_by_name

from brimful.errors import BrimfulError
from brimful.names import TASK_SAMPLE
from brimful.runtime import span_export
from brimful.runtime.port import Port, bind
from brimful_worker.broker import consumer, rabbitmq, requests, results, transport
from brimful_worker.broker.dead_letters import dead_letters
from brimful_worker.broker.fairness import fairness
from brimful_worker.broker.renewal import Renewal
from brimful_worker.broker.worker_state import raise_if_shutting_down
from brimful_worker.gc_tuning import tune_gc
from brimful_worker.logs import celery_records
from brimful_worker.pool import events, mingle, task_context
from brimful_worker.pool.execution import adapt_tasks
from brimful_worker.pool.loop import LoopThread
from brimful_worker.pool.result_store import ResultStore

log = logging.getLogger(__name__)

_ASSEMBLE = "brimful_worker.worker:assemble"
"""Makes the port. By name, since ``worker`` imports the pool."""
_LETTERS_S = 2.0
"""How long dead letters may take to be written when the worker stops. The rest goes to another worker."""


class WorkerPort(Port, Protocol):
    """A port that is opened and closed on the event loop."""

    stopping: asyncio.Event
    """Set when a warm shutdown begins."""

    async def start(self) -> None:
        """Returns when Redis has been reached, however long that takes."""

    def add(self, command: tuple[Any, ...], answered: Future[Any] | None) -> None:
        """Send a command to the fleet's Redis, with others of this moment. On the loop; see :class:`ResultStore`."""

    async def aclose(self) -> None: ...


class Process:
    """Main thread only."""

    def __init__(self, app: Celery, node: str, port: WorkerPort | None) -> None:
        """``node`` is the worker's name. ``port`` is None for an app that has none of brimful's tasks."""
        self.loop = LoopThread()
        self._app = app
        self._node = node
        self._port = port
        self._renewal = Renewal(app) if rabbitmq.is_redis(app) else None
        self._results: ResultStore | None = None

    def start(self) -> None:
        """Returns when the port is ready. A signal ends the wait."""
        task_context.install(self._app)
        adapt_tasks(self._app)
        self.loop.start()
        if self._port is not None:
            try:
                _wait(self.loop.submit(self._port.start()))
            except BrimfulError as error:
                raise _exit(error) from None
            self._results = ResultStore(self._app, self.loop.loop, self._port.add)
            self._results.open()
        bind(self._port)
        if self._renewal is not None:
            self._renewal.start()
        dead_letters.start(self._app, self._node)
        tune_gc()

    def set_concurrency(self, tasks: int) -> int:
        """``tasks`` run at once from now on. Returns how many more may, so that no kind of work waits for another."""
        if self._port is None:
            return 0
        fairness.set_concurrency(tasks)
        return fairness.reserve

    def stopping(self) -> None:
        """A shutdown begins."""
        if self._port is not None and self.loop.alive:
            self.loop.loop.call_soon_threadsafe(self._port.stopping.set)

    def stop(self, port_s: float, tasks_s: float) -> None:
        """Close the port within ``port_s`` seconds, then end the loop's last tasks within ``tasks_s``."""
        if self._results is not None:
            self._results.close()
        if self._port is not None and self.loop.alive:
            try:
                self.loop.submit(self._port.aclose()).result(port_s)
            except TimeoutError:
                log.warning("the worker's connections did not close within %.1f s", port_s)
            except Exception as error:
                log.warning("closing the worker's connections: %s", error)
        bind(None)
        dead_letters.stop(_LETTERS_S)
        if self._renewal is not None:
            self._renewal.stop()
        self.loop.stop(tasks_s)
        span_export.close()


def prepare(app: Celery, node: str) -> Process:
    """Called before anything of the worker has started. Exits with a message when a setting is missing or wrong."""
    transport.install(app)
    consumer.install()
    results.install()
    celery_records.install()
    mingle.install()
    requests.install()
    events.install()
    if not rabbitmq.is_redis(app):
        rabbitmq.limit_each_queue(app)
    if TASK_SAMPLE not in app.tasks:
        return Process(app, node, None)
    assemble: Callable[[str], WorkerPort] = symbol_by_name(_ASSEMBLE)  # type: ignore[no-untyped-call]
    try:
        return Process(app, node, assemble(node))
    except BrimfulError as error:
        raise _exit(error) from None


def _exit(error: BrimfulError) -> SystemExit:
    print(f"brimful worker: {error}", file=sys.__stderr__, flush=True)
    return SystemExit(int(error.exit_code))


def _wait(future: Future[None]) -> None:
    while True:
        try:
            return future.result(0.2)
        except TimeoutError:
            if future.done():
                raise
            raise_if_shutting_down()
