"""The port between a task's body and the worker it runs in.

Task bodies live in ``brimful`` and may not import the worker; the worker binds itself here when it starts.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from brimful.errors import NoWorker

if TYPE_CHECKING:
    from celery import Task

    from brimful.outcome import Outcome
    from brimful.request import Request


class Port(Protocol):
    """What a worker process offers to task bodies."""

    def run(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a body on the process's event loop; called on the tracer's thread, which it blocks until the end."""

    def parse(self, raw: Any, fields: dict[str, Any]) -> Request:
        """A checked request under this worker's profile. Raises BadRequest."""

    async def sample(self, request: Request) -> Outcome:
        """Admit, send, and say what became of it. Raises only CancelledError."""

    async def shard(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Sample all requests of a shard that are still wanted; outcomes go to the run's ledger. Returns counts."""


_port: Port | None = None


def bind(port: Port | None) -> None:
    """Called by the worker at its start, and with None at its end."""
    global _port
    _port = port


def port() -> Port:
    """The bound worker. Raises NoWorker elsewhere."""
    if _port is None:
        raise NoWorker(
            "a brimful task's body runs only in a brimful worker: enqueue it (delay, send_task), "
            "and start a worker with `brimful worker`"
        )
    return _port
