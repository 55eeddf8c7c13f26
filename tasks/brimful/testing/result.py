"""The handle of a request that a test's backend answers, with the interface of Celery's AsyncResult."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from celery import states
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import EagerResult

from brimful.names import TASK_SAMPLE
from brimful.state.result_consumer import revoked


class PendingResult(EagerResult):  # type: ignore[misc]  # celery ships no types
    """Celery's result of an eager task, except that the task may still run."""

    def __init__(self, id: str, future: Future[Any], cancel: Callable[[str], None]) -> None:
        super().__init__(id, None, states.PENDING, name=TASK_SAMPLE)
        self.future = future
        self._cancel = cancel
        future.add_done_callback(self._settle)

    def ready(self) -> bool:
        return self.future.done()

    def get(self, timeout: float | None = None, **options: Any) -> Any:
        try:
            self.future.exception(timeout)
        except FutureTimeout:
            raise CeleryTimeout("The operation timed out.") from None
        except CancelledError:
            pass
        self._settle(self.future)
        return super().get(**options)

    def revoke(self, *_: Any, **__: Any) -> None:
        self._cancel(self.id)

    def _settle(self, future: Future[Any]) -> None:
        self._result: Any
        if future.cancelled():
            self._state, self._result = states.REVOKED, revoked()
        elif (error := future.exception()) is not None:
            self._state, self._result = states.FAILURE, error
        else:
            self._state, self._result = states.SUCCESS, future.result()
