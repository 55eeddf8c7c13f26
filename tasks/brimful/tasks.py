"""The tasks as declared: name, options, and a coroutine of a few lines."""

from __future__ import annotations

from typing import Any

from celery import Task

from brimful.celery import app
from brimful.errors import BadRequest, SampleError
from brimful.names import TASK_SAMPLE, TASK_SHARD
from brimful.runtime.port import port


class CoroutineTask(Task):  # type: ignore[misc]  # celery ships no types
    """A task whose body is a coroutine: it runs on the worker's one event loop while Celery's tracer waits."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return port().run(self, self.run(*args, **kwargs))


@app.task(base=CoroutineTask, name=TASK_SAMPLE, shared=False, throws=(SampleError, BadRequest))  # type: ignore[untyped-decorator]
async def sample(request: Any = None, **fields: Any) -> dict[str, Any]:
    """One request; the provider's Completion is the result, with what it took under ``brimful``.

    ``sample.delay("The sky is", max_tokens=8)``, ``sample.delay({"prompt": …})`` and
    ``send_task("brimful.sample", kwargs={"prompt": …})`` are the same, as is ``kwargs={"request": {"prompt": …}}``.
    ``fields`` are any of the provider's, and ``mode``, ``workload``, ``system``. Raises brimful.errors.SampleError and
    BadRequest.
    """
    outcome = await port().sample(port().parse(request, fields))
    if outcome.failure is not None:
        raise outcome.failure.error()
    assert outcome.completion is not None
    took = {"attempts": outcome.attempts, "waited_s": outcome.waited_s, "provider_s": outcome.provider_s}
    return {**outcome.completion, "brimful": took}


@app.task(base=CoroutineTask, name=TASK_SHARD, shared=False, ignore_result=True)  # type: ignore[untyped-decorator]
async def shard(run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Many requests of one run. Each has an outcome of its own; a failing one never fails its neighbours."""
    return await port().shard(run, shard, requests)
