"""Celery's per-thread state, for coroutines too.

Celery keeps ``task.request`` and ``current_task`` in stacks keyed by thread; all coroutines share one thread. Here the
key can be a coroutine's own, which its context carries into everything it awaits and starts.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from celery import _state

_key: ContextVar[int] = ContextVar("brimful_stack_key")
_keys = itertools.count(-1, -1)  # threads have positive ones


def share(stack: Any) -> None:
    """Make one of Celery's stacks obey the key."""
    if hasattr(stack, "__ident_func__"):  # absent with USE_FAST_LOCALS
        stack.__ident_func__ = _owner


def carry() -> Callable[[], AbstractContextManager[None]]:
    """Take the current task and its request; what is returned puts them in place for a coroutine, when entered there.

    The coroutine keeps them even when its tracer leaves first, as it does when the task is revoked.
    """
    task = _state._task_stack.top
    request = task.request_stack.top if task is not None else None

    @contextmanager
    def placed() -> Iterator[None]:
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

    return placed


def _owner() -> int:
    return _key.get(0) or threading.get_ident()
