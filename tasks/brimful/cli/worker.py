"""``brimful worker``: one worker process of the fleet. It runs ``celery worker`` in this same process."""

from __future__ import annotations

from typing import Annotated

import typer

from brimful.names import QUEUES, LogFormat, LogLevel
from brimful.runtime.extras import worker_module


def worker(
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-c", min=1, help="Tasks that it runs at once. Default: BRIMFUL_CONCURRENCY, else 64."
        ),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            "-Q",
            help=f"Queues to consume, comma-separated, most urgent first. Default: {','.join(QUEUES)}.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "-n", help="The node name, unique in the fleet: NAME or NAME@HOST. Default: worker-PID@HOST."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level", "-l", case_sensitive=False, help="Level of its log. Default: BRIMFUL_LOG_LEVEL, else INFO."
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            "--log-format",
            case_sensitive=False,
            help="Text, or one JSON object a record. Default: BRIMFUL_LOG_FORMAT, else text.",
        ),
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
        run_worker(
            concurrency=concurrency,
            queues=queues,
            name=name,
            log_level=log_level,
            log_format=log_format,
            take_over=take_over,
        )
    )
