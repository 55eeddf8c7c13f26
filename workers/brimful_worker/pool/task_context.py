"""Celery's per-thread task state, made per coroutine.

Celery keeps ``task.request`` and ``current_task`` in stacks keyed by thread, and all coroutines share one thread. Here
a coroutine has a key of its own, which its context carries into everything it awaits and starts.

Private parts of celery 5.7.0:
    celery._state: _task_stack
    celery.utils.threads._LocalStack: __ident_func__, pop, push, top
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from celery import Celery, _state

_key: ContextVar[int] = ContextVar("brimful_stack_key")
_keys = itertools.count(-1, -1)  # threads have positive ones


def install(app: Celery) -> None:
    """Key Celery's stacks by coroutine, for all tasks of the app. Idempotent."""
    for stack in (_state._task_stack, *(task.request_stack for task in app.tasks.values())):
        if hasattr(stack, "__ident_func__"):  # absent with USE_FAST_LOCALS
            stack.__ident_func__ = _owner


def carry() -> Callable[[], AbstractContextManager[None]]:
    """Take the current task and its request. What is returned sets them for a coroutine that enters it.

    The coroutine keeps them even when its tracer leaves first, as it does when the task is revoked.
    """
    task = _state._task_stack.top
    request = task.request_stack.top if task is not None else None

    @contextmanager
    def carried() -> Iterator[None]:
        _key.set(next(_keys))
        if task is None:
            yield
            return
        _state._task_stack.push(task)
        task.request_stack.push(request)
        try:
            yield
        finally:
            task.request_stack.pop()
            _state._task_stack.pop()

    return carried


def _owner() -> int:
    return _key.get(0) or threading.get_ident()
