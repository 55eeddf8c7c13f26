"""Throws an exception of our choice into a running coroutine, which asyncio alone can only cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded


class SoftLimit(SoftTimeLimitExceeded, asyncio.CancelledError):  # type: ignore[misc]  # celery ships no types
    """Raised in a coroutine at its soft time limit.

    Task code catches it as Celery's SoftTimeLimitExceeded. asyncio's own helpers (task groups, locks) see a
    cancellation, after which they know to clean up.
    """


class Interruptible:
    """Awaits a coroutine. A cancellation that arrives while :attr:`replacement` is set is thrown into it as that."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.replacement: BaseException | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting_for = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                value = yield waiting_for
            except asyncio.CancelledError as cancelled:
                error = cancelled
                if self.replacement is not None:
                    error, self.replacement = self.replacement, None
                    task = asyncio.current_task()
                    assert task is not None
                    task.uncancel()  # it was no request to end; the coroutine may go on
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:
                error = thrown
