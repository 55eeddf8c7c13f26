"""``brimful worker``: one worker process of the fleet. It runs ``celery worker`` in this same process."""

from __future__ import annotations

from typing import Annotated

import typer

from brimful.names import QUEUES
from brimful.runtime.extras import worker_module


def worker(
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Tasks run at once; default BRIMFUL_CONCURRENCY.")
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option("--queues", "-Q", help=f"Comma-separated, most urgent first; default {','.join(QUEUES)}."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="The node name, unique in the fleet: NAME or NAME@HOST.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", "-l", help="DEBUG, INFO, WARNING or ERROR; default BRIMFUL_LOG_LEVEL."),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the fleet and its queued tasks over from another API key.")
    ] = False,
) -> None:
    """Run one worker process until SIGTERM or Ctrl-C.

    It needs BRIMFUL_REDIS_URL, the API key and the provider's URL. On SIGTERM or Ctrl-C it finishes the requests on the
    wire and returns the other tasks to the queue; a second Ctrl-C, or SIGQUIT, returns all of them.
    """
    run_worker = worker_module("startup", "a worker").run_worker
    raise typer.Exit(
        run_worker(concurrency=concurrency, queues=queues, name=name, log_level=log_level, take_over=take_over)
    )
