"""Flower's settings for ``celery -A brimful flower --conf=…``. Flower executes the file by its path."""

import os
import secrets
import socket
import sys

import click

from brimful.config import Settings
from brimful_worker.local.flower import access, queues, reconcile, redact
from brimful_worker.local.flower.redact import format_task
from brimful_worker.logs.json_format import use_log_format

__all__ = ["auto_refresh", "basic_auth", "db", "format_task", "max_tasks", "persistent", "purge_offline_workers"]
__all__ += ["state_save_interval", "task_runtime_metric_buckets", "tasks_columns"]

redact.install()
access.install()
reconcile.install()
queues.install()
use_log_format(Settings.load(), f"flower@{socket.gethostname()}")
# Flower's REST API makes results of Celery's current app. The app of `-A brimful` is not: a service may have its own.
if (_command := click.get_current_context(silent=True)) is not None:
    _command.obj.app.set_default()

max_tasks = 10_000
purge_offline_workers = 120
# Its history, without prompts, across restarts; written every minute and at its end.
db = os.environ.get("BRIMFUL_FLOWER_DB") or "flower"
persistent = bool(os.environ.get("BRIMFUL_FLOWER_DB"))
state_save_interval = 60_000
auto_refresh = True
tasks_columns = "name,uuid,state,received,started,runtime,worker,routing_key,exception"
# A completion takes from a tenth of a second to many minutes.
task_runtime_metric_buckets = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0]

# From the environment, since everybody on the machine can read argv. There is always a login: without one, anybody who
# reaches Flower could revoke tasks and enqueue paid work.
if _set := os.environ.get("FLOWER_BASIC_AUTH"):
    basic_auth = _set.split(",")
else:
    _user = os.environ.get("BRIMFUL_FLOWER_USER") or "brimful"
    _password = os.environ.get("BRIMFUL_FLOWER_PASSWORD")
    if not _password:
        _password = secrets.token_urlsafe(18)
        print(f"Flower's login: {_user} / {_password} (set BRIMFUL_FLOWER_PASSWORD to choose it)", file=sys.stderr)
    basic_auth = [f"{_user}:{_password}"]
