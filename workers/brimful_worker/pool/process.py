"""What a worker process has beside its pool: the port, the renewal of its tasks, and the changes to Celery's parts."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import redis
from celery import Celery
from celery.app.task import Task
from celery.worker import state
from kombu.utils.imports import symbol_by_name

from brimful.errors import BrimfulError
from brimful.names import TASK_SAMPLE
from brimful.runtime.port import Port, bind
from brimful_worker import logs
from brimful_worker.broker import mingle as hello
from brimful_worker.broker import transport as broker
from brimful_worker.broker.fairness import shares
from brimful_worker.broker.renewal import Renewal
from brimful_worker.pool import gc_tuning as garbage
from brimful_worker.pool.loop import LoopThread

log = logging.getLogger(__name__)

ASSEMBLE = "brimful_worker.worker:assemble"
"""Makes the port of a brimful worker. An app of another kind may name one of its own: ``app.conf.brimful_assemble``."""

_RETRY_S = 1.0


class Assembled(Port, Protocol):
    """A port with a life of its own, all of it on the loop."""

    stopping: asyncio.Event
    """Set when a warm shutdown begins."""

    async def start(self) -> None:
        """Raises redis.RedisError or OSError while Redis is away; it is then called again."""

    async def aclose(self) -> None: ...


class Process:
    """Of one pool; ``start``, ``stopping`` and ``stop`` are called on the main thread."""

    def __init__(self, app: Celery, port: Assembled | None, *, shared: bool = False) -> None:
        """``shared``: several of our queues are served, none of which may shut the others out."""
        self._port = port
        self._shared = shared
        self._renewal = Renewal(app)

    def start(self, loop: LoopThread) -> None:
        """Returns when the port is ready, however long Redis is away; a signal ends the waiting."""
        warned = False
        while self._port is not None:
            try:
                _wait(loop.submit(self._port.start()))
                break
            except (redis.RedisError, OSError) as error:
                if not warned:
                    log.error("cannot reach Redis: %s; trying on", error)
                warned = True
                _pause(_RETRY_S)
            except BrimfulError as error:
                raise _refused(error) from None
        bind(self._port)
        self._renewal.start()
        garbage.settle()

    def resize(self, places: int) -> None:
        """How many tasks run at once from now on."""
        if self._shared:
            shares.limit(places)

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
    broker.install(app)
    logs.install()
    hello.install()
    Task.Request = "brimful_worker.broker.requests:WorkerRequest"
    ours = TASK_SAMPLE in app.tasks
    path = app.conf.get("brimful_assemble") or (ASSEMBLE if ours else None)
    try:
        assemble: Callable[[str], Assembled] | None = symbol_by_name(path) if path else None  # type: ignore[no-untyped-call]
        return Process(app, assemble(node) if assemble is not None else None, shared=ours)
    except BrimfulError as error:
        raise _refused(error) from None


def _refused(error: BrimfulError) -> SystemExit:
    print(f"brimful worker: {error}", file=sys.__stderr__, flush=True)
    return SystemExit(int(error.exit_code))


def _wait(future: Future[None]) -> None:
    while True:
        try:
            return future.result(0.2)
        except TimeoutError:
            if future.done():
                raise
            state.maybe_shutdown()


def _pause(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        state.maybe_shutdown()
        time.sleep(0.05)
