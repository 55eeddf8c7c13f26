"""Any app's tasks, made to run well in the pool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from celery import Celery, _state
from celery.app.task import Task

from brimful_worker.pool.execution import current_execution, run_coroutine
from brimful_worker.pool.task_context import share


def adopt(app: Celery) -> None:
    """Called once, before Celery builds its tracers.

    A task defined with ``async def`` becomes callable for the tracer; a plain function stays in the tracer's thread,
    where it can be ended.
    """
    share(_state._task_stack)
    for task in app.tasks.values():
        share(task.request_stack)
        if task.name.startswith("celery.") or getattr(task.run, "_brimful", False):
            continue
        if any("__call__" in kind.__dict__ for kind in type(task).__mro__ if kind not in (Task, object)):
            continue  # a class that knows how to call itself, as ours do
        task.run = _callable(task.run)


def _callable(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(run):
            return run_coroutine(run(*args, **kwargs))
        job = current_execution()
        return run(*args, **kwargs) if job is None else job.run_function(run, args, kwargs)

    call._brimful = True  # type: ignore[attr-defined]
    return call
