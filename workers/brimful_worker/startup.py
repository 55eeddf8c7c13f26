"""Runs a brimful worker in this process: ``celery worker`` with the settings of the environment.

Used by ``brimful worker`` and by the child processes of a local fleet.
"""

from __future__ import annotations

import os
from typing import Any

from celery.signals import after_setup_logger
from celery.utils.nodenames import host_format

from brimful.config import Settings
from brimful.errors import ExitCode, SettingError
from brimful.names import APP, QUEUES, LogFormat, LogLevel, of_fleet, plain_queue
from brimful.state.fleets import take_fleet_over
from brimful.state.redis_url import required
from brimful_worker.logs.json_format import use_log_format


def run_worker(
    *,
    concurrency: int | None = None,
    queues: str | None = None,
    name: str | None = None,
    log_level: LogLevel | None = None,
    log_format: LogFormat | None = None,
    take_over: bool = False,
) -> int:
    """Returns the exit code when the worker ends. Raises SettingError before anything has started.

    ``queues`` is a comma-separated list; ``name`` is NAME or NAME@HOST. ``take_over``: make the fleet this key's first;
    raises RedisUnreachable.
    """
    settings = Settings.load(typed=True, concurrency=concurrency, log_level=log_level, log_format=log_format)
    # The worker's parts load their settings again.
    os.environ |= {"BRIMFUL_CONCURRENCY": str(settings.concurrency), "BRIMFUL_LOG_FORMAT": settings.log_format}
    required(settings.redis_url)
    _ = settings.api_base, settings.key_tag  # raise SettingError if they are not set
    if take_over:
        take_fleet_over(settings)
    wanted = [plain_queue(queue.strip()) for queue in (queues or ",".join(QUEUES)).split(",") if queue.strip()]
    if unknown := [queue for queue in wanted if queue not in QUEUES]:
        raise SettingError(f"--queues: there is no queue {', '.join(unknown)}: the queues are {', '.join(QUEUES)}")
    node = name or f"worker-{os.getpid()}"
    node = host_format(node if "@" in node else f"{node}@%h")
    after_setup_logger.connect(lambda **_: use_log_format(settings, node), weak=False)
    return _run_celery(
        [
            *("-n", node),
            *("-c", str(settings.concurrency)),
            *("-Q", ",".join(of_fleet(settings.fleet, queue) for queue in wanted)),
            *("-l", settings.log_level),
            "--without-gossip",  # no worker uses the events of the others
            *("--heartbeat-interval", "5"),  # Flower reads it in them; at Celery's 2 s an idle worker did little else
        ]
    )


def _run_celery(arguments: list[str]) -> int:
    # The subcommand itself: the `celery` command group would import every other subcommand, 0.2 s more.
    from celery.app.utils import find_app
    from celery.bin.base import CLIContext
    from celery.bin.worker import worker as command
    from celery.signals import worker_shutting_down

    interrupted = False

    def on_shutdown(sig: str = "", **_: Any) -> None:
        nonlocal interrupted
        interrupted |= sig == "SIGINT"

    worker_shutting_down.connect(on_shutdown)
    app = find_app(APP)
    app.set_default()
    try:
        context = CLIContext(app=app, no_color=bool(os.environ.get("NO_COLOR")) or None, workdir=None, quiet=True)
        code = command.main(arguments, prog_name="celery worker", standalone_mode=False, obj=context)
    except SystemExit as end:
        code = end.code
    finally:
        worker_shutting_down.disconnect(on_shutdown)
    if interrupted:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK
