"""Celery's per-thread state, shared by a tracer's thread and the coroutine it waits for.

Celery keeps ``task.request`` and ``current_task`` in stacks keyed by thread. The coroutine of a task runs on another
thread than its tracer, so both are given one key: their job's.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery, _state
from celery.app.task import Task

from brimful_worker.jobs import current_job, run_coroutine


def owner() -> int:
    """The key: the job's where there is one, else the thread's."""
    job = current_job()
    return threading.get_ident() if job is None else -job.id


def adopt(app: Celery) -> None:
    """Make all of an app's tasks run well in the pool; called once, before any tracer is built.

    A task defined with ``async def`` becomes callable for the tracer; a plain function stays in the tracer's thread,
    where it can be ended.
    """
    _share(_state._task_stack)
    for task in app.tasks.values():
        _share(task.request_stack)
        if type(task).__call__ is not Task.__call__ or task.name.startswith("celery."):
            continue  # a class that knows how to call itself, as ours do
        if not getattr(task.run, "_brimful", False):
            task.run = _callable(task.run)


def _share(stack: Any) -> None:
    if hasattr(stack, "__ident_func__"):  # absent with USE_FAST_LOCALS
        stack.__ident_func__ = owner


def _callable(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        job = current_job()
        if inspect.iscoroutinefunction(run):
            return run_coroutine(run(*args, **kwargs))
        return run(*args, **kwargs) if job is None else job.run_function(run, args, kwargs)

    call._brimful = True  # type: ignore[attr-defined]
    return call
