"""``brimful worker``: one worker process of the fleet. It is ``celery worker`` underneath, in this same process."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from brimful.config import Settings
from brimful.errors import ExitCode, SettingError
from brimful.names import QUEUES
from brimful.runtime.extras import worker_module


def worker(
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Tasks run at once; BRIMFUL_CONCURRENCY.")
    ] = None,
    queues: Annotated[
        str | None, typer.Option("--queues", "-Q", help=f"By commas, most urgent first; else {','.join(QUEUES)}.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="The node's name, unique in the fleet; NAME or NAME@HOST.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", "-l", help="DEBUG, INFO, WARNING, ERROR; BRIMFUL_LOG_LEVEL.")
    ] = None,
) -> None:
    """Run one worker process until SIGTERM or Ctrl-C; it needs BRIMFUL_REDIS_URL, the key and the provider's URL.

    SIGTERM finishes what is on the wire and gives the rest back. A second Ctrl-C, or SIGQUIT, gives all of it back.
    """
    raise typer.Exit(run_worker(concurrency=concurrency, queues=queues, name=name, log_level=log_level))


def run_worker(
    *,
    concurrency: int | None = None,
    queues: str | None = None,
    name: str | None = None,
    log_level: str | None = None,
) -> int:
    """Returns the exit code at the worker's end. Raises SettingError before anything has started."""
    worker_module("pool", "a worker")
    settings = Settings.load(concurrency=concurrency, log_level=log_level)
    if settings.redis_url is None:
        raise SettingError(
            "BRIMFUL_REDIS_URL: not set; it names the fleet's Redis. (`brimful up` brings one of its own.)"
        )
    _ = settings.api_base, settings.key_tag  # raises where the key or the provider's URL is missing
    known = [queue.strip() for queue in (queues or ",".join(QUEUES)).split(",") if queue.strip()]
    if unknown := [queue for queue in known if queue not in QUEUES]:
        raise SettingError(f"--queues: {', '.join(unknown)}: the queues are {', '.join(QUEUES)}")
    node = name or f"worker-{os.getpid()}"
    arguments = [
        *("-n", node if "@" in node else f"{node}@%h"),
        *("-c", str(settings.concurrency)),
        *("-Q", ",".join(known)),
        *("-l", settings.log_level.upper()),
        "--without-gossip",  # every worker reading every other's events brings a fleet nothing
    ]
    return _celery(arguments)


def _celery(arguments: list[str]) -> int:
    # The command itself: `celery` around it loads every other command and plugin there is, for a fifth of a second.
    from celery.bin.base import CLIContext
    from celery.bin.worker import worker as command
    from celery.signals import worker_shutting_down

    from brimful.celery import app

    interrupted: list[str] = []

    def note(sig: str = "", **_: Any) -> None:
        if sig == "SIGINT":
            interrupted.append(sig)

    worker_shutting_down.connect(note)
    app.set_default()
    try:
        context = CLIContext(app=app, no_color=bool(os.environ.get("NO_COLOR")) or None, workdir=None, quiet=True)
        code = command.main(arguments, prog_name="celery worker", standalone_mode=False, obj=context)
    except SystemExit as end:
        code = end.code
    finally:
        worker_shutting_down.disconnect(note)
    if interrupted:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK
