"""What a worker process runs beside its pool: the port for task bodies, the renewal of messages, changes to Celery."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from celery import Celery
from kombu.utils.imports import symbol_by_name

from brimful.errors import BrimfulError
from brimful.names import TASK_SAMPLE
from brimful.runtime.port import Port, bind
from brimful_worker import logs
from brimful_worker.broker import mingle, requests, transport
from brimful_worker.broker.fairness import fairness
from brimful_worker.broker.renewal import Renewal
from brimful_worker.broker.worker_state import raise_if_shutting_down
from brimful_worker.pool import gc_tuning
from brimful_worker.pool.loop import LoopThread

log = logging.getLogger(__name__)

_ASSEMBLE = "brimful_worker.worker:assemble"
"""Makes the port. By name, since ``worker`` imports the pool."""


class WorkerPort(Port, Protocol):
    """A port that is opened and closed on the event loop."""

    stopping: asyncio.Event
    """Set when a warm shutdown begins."""

    async def start(self) -> None:
        """Returns when Redis has been reached, however long that takes."""

    async def aclose(self) -> None: ...


class Process:
    """``start``, ``resize``, ``stopping`` and ``stop`` are called on the main thread."""

    def __init__(self, app: Celery, port: WorkerPort | None) -> None:
        """``port`` is None for an app that has none of brimful's tasks."""
        self._port = port
        self._renewal = Renewal(app)

    def start(self, loop: LoopThread) -> None:
        """Returns when the port is ready. A signal ends the wait."""
        if self._port is not None:
            try:
                _wait(loop.submit(self._port.start()))
            except BrimfulError as error:
                raise _exit(error) from None
        bind(self._port)
        self._renewal.start()
        gc_tuning.settle()

    def resize(self, tasks: int) -> None:
        """``tasks`` run at once from now on."""
        if self._port is not None:
            fairness.set_concurrency(tasks)

    def stopping(self, loop: LoopThread) -> None:
        if self._port is not None:
            loop.loop.call_soon_threadsafe(self._port.stopping.set)

    def stop(self, loop: LoopThread, grace_s: float) -> None:
        if self._port is not None and loop.alive:
            try:
                loop.submit(self._port.aclose()).result(grace_s)
            except TimeoutError:
                log.warning("the worker's connections did not close within %.1f s", grace_s)
            except Exception as error:
                log.warning("closing the worker's connections: %s", error)
        bind(None)
        self._renewal.stop()


def prepare(app: Celery, node: str) -> Process:
    """Called before anything of the worker has started. Exits with a message when a setting is missing or wrong."""
    transport.install(app)
    logs.install()
    mingle.install()
    requests.install()
    if TASK_SAMPLE not in app.tasks:
        return Process(app, None)
    assemble: Callable[[str], WorkerPort] = symbol_by_name(_ASSEMBLE)  # type: ignore[no-untyped-call]
    try:
        return Process(app, assemble(node))
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
