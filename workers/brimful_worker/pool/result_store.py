"""Stores states and results of tasks in Redis through the event loop, those of many tasks in one pipeline.

Celery's backend takes two round trips for each of a task's states, on connections of its own. Here one script does the
same, and the tracer waits for the end of the task to be stored, but not for its beginning.

Private parts of celery 5.7.0:
    celery.backends.base.BaseKeyValueStoreBackend: _get_result_meta, _store_result, encode, get_key_for_task
    celery.backends.redis.RedisBackend: expires, failure_expires
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import Future
from importlib import resources
from typing import Any

from celery import Celery, states
from celery.backends.redis import RedisBackend

_STORE = resources.files("brimful_worker.pool").joinpath("store.lua").read_text("utf-8")
SUCCEEDED = '{"status": "SUCCESS"'
"""How the result of a task that succeeded begins, as Celery's backend encodes it."""
_REVOKED = '{"status": "REVOKED"'
_LARGE = 2**19
"""Characters from which a value goes on a connection of its own: a server that refuses it closes the connection."""

Add = Callable[[tuple[Any, ...], "Future[Any] | None"], None]
"""Sends a command; the reply becomes the future's result. On the loop."""


class ResultStore:
    """Does the work of an app's ``backend._store_result`` from :meth:`open` to :meth:`close`. Thread-safe."""

    def __init__(self, app: Celery, loop: AbstractEventLoop, add: Add) -> None:
        self._backend = app.backend
        self._loop = loop
        self._add = add
        self._celerys = self._backend._store_result

    def open(self) -> None:
        if isinstance(self._backend, RedisBackend):
            self._backend._store_result = self._store

    def close(self) -> None:
        self._backend._store_result = self._celerys

    def _store(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **more: Any
    ) -> Any:
        """Raises redis.RedisError, for which Celery's backend tries again."""
        backend = self._backend
        meta = backend._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = task_id
        value = backend.encode(meta)
        if len(value) > _LARGE:
            return self._celerys(task_id, result, state, traceback=traceback, request=request, **more)
        expires = (backend.failure_expires if state == states.FAILURE else None) or backend.expires or 0
        key = backend.get_key_for_task(task_id)
        # A task may be revoked before its tracer, on another thread, has stored that it begins.
        stay = (SUCCEEDED, _REVOKED) if state == states.STARTED else (SUCCEEDED,)
        command = ("EVAL", _STORE, 1, key, value, int(expires), *stay)
        stored: Future[Any] | None = None if state == states.STARTED else Future()
        self._loop.call_soon_threadsafe(self._add, command, stored)
        if stored is not None:
            stored.result()
        return result
