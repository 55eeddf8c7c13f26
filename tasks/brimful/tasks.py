"""The Celery tasks ``brimful.sample`` and ``brimful.shard``. Their bodies run in the worker, which binds the port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from celery import Task

from brimful.celery import app
from brimful.errors import BadRequest, SampleError, VersionMismatch
from brimful.fields import warn_of_unknown
from brimful.names import TASK_SAMPLE, TASK_SHARD
from brimful.nesting import unsendable
from brimful.runtime.port import port
from brimful.schema import HEADER, MESSAGES, check_schema

if TYPE_CHECKING:
    from celery.canvas import Signature


_WAY_OUT = "start workers of the sender's release"


class Handle(Protocol):
    """An enqueued request: Celery's AsyncResult, as type checkers see it."""

    id: str
    backend: Any

    @property
    def state(self) -> str: ...

    @property
    def result(self) -> Any: ...

    def get(self, timeout: float | None = None, propagate: bool = True) -> dict[str, Any]: ...

    def ready(self) -> bool: ...

    def successful(self) -> bool: ...

    def failed(self) -> bool: ...

    def forget(self) -> None: ...

    def revoke(self, connection: Any = None, terminate: bool = False) -> None: ...


def check_fields(*given: Any) -> set[str]:
    """The names of the fields in some mappings; what is no mapping has none. Raises BadRequest for a name that is no
    string, and for a value that no provider can get."""
    names: set[str] = set()
    for fields in given:
        if not isinstance(fields, Mapping):
            continue
        for name in fields:
            if not isinstance(name, str):
                raise BadRequest(f"field {name!r}: the name of a field must be a string")
        if fault := unsendable(fields):
            raise BadRequest(fault)
        names.update(fields)
    return names


class CoroutineTask(Task):  # type: ignore[misc]  # celery ships no types
    """A task whose body is a coroutine. It runs on the worker's event loop while Celery's tracer waits in a thread."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_schema("the task's message", self.request.get(HEADER), MESSAGES, _WAY_OUT)
        return port().run(self, self.run(*args, **kwargs))


class SampleTask(CoroutineTask):
    """The type of :data:`sample`. It warns of fields that may be misspelt."""

    abstract = True

    def delay(self, request: Any = None, **fields: Any) -> Handle:
        """As documented at :data:`sample`."""
        return self.apply_async((request,), fields)

    def apply_async(
        self, args: tuple[Any, ...] | list[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Handle:
        """``options`` are Celery's: ``queue``, ``task_id``, ``countdown``, ``expires``, ``priority``, ``link``, …"""
        fields = dict(kwargs or {})
        request = args[0] if args else fields.get("request")
        options["headers"] = {HEADER: MESSAGES, **(options.get("headers") or {})}
        warn_of_unknown(check_fields(fields, request))
        handle: Handle = super().apply_async(args, fields, **options)
        return handle

    if TYPE_CHECKING:

        def s(self, request: Any = None, **fields: Any) -> Signature: ...

        def si(self, request: Any = None, **fields: Any) -> Signature: ...


async def _sample(request: Any = None, **fields: Any) -> dict[str, Any]:
    """Sample one request. The result is the provider's completion.

    ::

        completion = sample.delay("The sky is", n=2, max_tokens=8).get(timeout=120)
        completion["choices"][1]["text"]

    ``request`` is a prompt (``str``, ``list[str]``, ``list[int]`` or ``list[list[int]]``) or a dict of fields,
    which ``fields`` override. Fields are the provider's own (``n``, ``max_tokens``, ``temperature``, …), and brimful's
    ``mode`` (``completion``, ``chat``, ``job``), ``workload`` (``interactive``, ``batch``) and ``system``. A service
    without brimful sends the same by name: ``send_task("brimful.sample", kwargs={"prompt": "Hi", "max_tokens": 8})``.

    Returns the completion as a dict: ``choices`` in the order ``index = prompt * n + choice``, and under ``brimful``
    the ``attempts``, the seconds ``waited_s`` (for admission) and ``provider_s`` (on the wire), and the provider's
    ``provider_request_ids``. Raises brimful.errors.BadRequest for a request that the provider would refuse, and
    SampleError for one that failed.
    """
    outcome = await port().sample(request, fields)
    if outcome.failure is not None:
        raise outcome.failure.error(outcome.attempts, outcome.id, outcome.provider_request_ids)
    assert outcome.completion is not None
    took: dict[str, Any] = {
        "attempts": outcome.attempts,
        "waited_s": outcome.waited_s,
        "provider_s": outcome.provider_s,
    }
    if outcome.provider_request_ids:
        took["provider_request_ids"] = outcome.provider_request_ids
    return {**outcome.completion, "brimful": took}


sample: SampleTask = app.task(
    base=SampleTask, name=TASK_SAMPLE, shared=False, throws=(SampleError, BadRequest, VersionMismatch)
)(_sample)


@app.task(  # type: ignore[untyped-decorator]
    base=CoroutineTask, name=TASK_SHARD, shared=False, ignore_result=True, store_errors_even_if_ignored=True
)
async def shard(run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Sample many requests of one run; for drivers, which record the shard in the run's ledger first.

    ``requests``: ``{"id": …, "units": manifest, "request": fields}`` each. Every request's outcome, failures included,
    goes to the run's results stream as it ends. Returns counts, which Celery does not store.
    """
    return await port().shard(run, shard, requests)
