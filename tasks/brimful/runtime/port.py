"""The port through which a task's body reaches the worker that runs it.

Task bodies live in ``brimful`` and may not import the worker. The worker binds its own implementation when it starts.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from brimful.errors import NoWorker

if TYPE_CHECKING:
    from celery import Task
    from celery.result import AsyncResult

    from brimful.outcome import Outcome


class Port(Protocol):
    """What a worker process offers to task bodies."""

    def run(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a task body on the process's event loop. Called on the tracer's thread; blocks it until the end."""

    async def sample(self, raw: Any, fields: dict[str, Any]) -> Outcome:
        """Check the request against this worker's profile, wait for a slot and a start, then ask the provider.

        Raises BadRequest, and what ends a task without a result: CancelledError, celery's Ignore and Reject. Any other
        failure is an outcome.
        """

    async def shard(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Sample a shard's requests that are still wanted; store outcomes in the run's ledger. Returns counts."""


class InProcess(Port, Protocol):
    """A test's backend, which also answers what a service's Fleets send (:class:`brimful.testing.Backend`)."""

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run ``sample`` on the backend's loop."""

    def submit(self, raw: Any, fields: Mapping[str, Any], task_id: str | None) -> AsyncResult[Any]:
        """Begin a request as the task :data:`brimful.sample`, and return its handle."""

    def cancel(self, ids: Iterable[str]) -> None:
        """End submitted requests; their handles are revoked."""

    def future(self, id: str) -> Future[Any]:
        """The result of a submitted request."""


_port: Port | None = None
_in_process: InProcess | None = None


def bind(port: Port | None) -> None:
    """Set the port: the worker does so at its start, and unsets it (None) at its end."""
    global _port
    _port = port


def bind_in_process(backend: InProcess | None) -> None:
    """Let a test's backend answer the Fleets of this process; None ends that."""
    global _in_process
    _in_process = backend


def in_process() -> InProcess | None:
    """The test's backend, if one is open."""
    return _in_process


def port() -> Port:
    """The bound worker. Raises NoWorker in a process that is not a brimful worker."""
    if _port is None:
        raise NoWorker(
            "a brimful task's body runs only in a brimful worker: enqueue it (delay, send_task), "
            "and start a worker with `brimful worker`; in tests, open a brimful.testing.Backend"
        )
    return _port
