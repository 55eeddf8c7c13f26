"""The Celery app, where ``celery -A brimful`` finds it. JSON only.

Nothing is read from the environment at import: Celery asks :func:`configuration` when it first needs its settings.
Without BRIMFUL_REDIS_URL (or Celery's own ``-b`` and CELERY_BROKER_URL) all works that needs no Redis; the first
connection raises SettingError, where Celery itself would look for a broker on this machine.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from celery import Celery
from celery.signals import celeryd_init, worker_init
from kombu import Queue  # type: ignore[attr-defined]

from brimful.config import Settings
from brimful.errors import ExitCode, SettingError
from brimful.names import APP, QUEUES, TASK_SAMPLE, TASK_SHARD, Workload
from brimful.runtime.extras import missing, needs
from brimful.state.redis_url import NOT_SET, broker_options, broker_url

POOL = "brimful_worker.pool:TaskPool"
"""By name: clients must not import it. ``celery -A brimful worker`` finds it here; ``-P custom`` means the same with
``CELERY_CUSTOM_WORKER_POOL`` set to it, which Celery reads before it looks at any app."""


class App(Celery):  # type: ignore[misc]  # celery ships no types
    """Celery that guesses no broker."""

    def _connection(self, url: str | None, *more: Any, **options: Any) -> Any:
        """Raises SettingError. All of Celery's connections are made here."""
        if not url:
            raise SettingError(NOT_SET)
        return super()._connection(url, *more, **options)


app = App(APP, set_as_current=False, include=["brimful.tasks"], amqp="brimful.runtime.redaction:DiscreetAMQP")


def configuration(redis_url: str | None = None) -> dict[str, Any]:
    """Celery's settings, from ours; ``redis_url`` beats the environment's."""
    settings = Settings.load(redis_url=redis_url)
    url = broker_url(settings.redis_url) if settings.redis_url else None
    return {
        "broker_url": url,
        "result_backend": url or _celerys_own(),
        # JSON and nothing else: a worker with a paid key unpickles nobody's bytes.
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "result_accept_content": ["json"],
        "task_queues": [Queue(name, routing_key=name) for name in QUEUES],  # type: ignore[no-untyped-call]
        "task_default_queue": Workload.BATCH.value,
        "task_routes": {
            TASK_SHARD: {"queue": Workload.BATCH.value},
            TASK_SAMPLE: {"queue": Workload.INTERACTIVE.value},
        },
        "task_acks_late": True,
        "task_track_started": True,
        # A task that was done, but whose worker died before it could say so, is not done again.
        "worker_deduplicate_successful_tasks": True,
        # Without its parts Celery could not even load it, before require_parts can say what is missing.
        "worker_pool": "solo" if missing() else POOL,
        "worker_concurrency": settings.concurrency,
        "worker_prefetch_multiplier": 1,
        # How many tasks with a countdown a worker may hold beside the running ones.
        "worker_eta_task_limit": 1000,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
        "broker_transport_options": broker_options(settings.redis_url, settings.visibility_timeout_s),
        "result_backend_transport_options": broker_options(settings.redis_url, settings.visibility_timeout_s),
        "result_backend_always_retry": True,
        "result_backend_base_sleep_between_retries_ms": 200,
        "result_backend_max_sleep_between_retries_ms": 2000,
        "result_backend_thread_safe": True,
        "result_expires": 24 * 3600,
    }


def _celerys_own() -> str | None:
    """Celery's own broker URL serves for the results too, where nothing else is said and it can."""
    url = os.environ.get("CELERY_BROKER_URL", "")
    return url if url.startswith(("redis", "sentinel://")) else None


app.add_defaults(configuration)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def require_parts(instance: Any, **_: Any) -> None:
    """A worker needs what a plain install does not have, and more of Redis than a broker. Exits with 2."""
    if TASK_SAMPLE not in instance.app.tasks:
        return
    if absent := missing():
        _refuse(needs("a worker", absent))
    if not Settings.load().redis_url:
        _refuse(NOT_SET)


@worker_init.connect  # type: ignore[untyped-decorator]
def require_pool(sender: Any, **_: Any) -> None:
    """A worker with another pool than ours would take requests and fail every one of them: it does not start. Other
    apps' workers are none of our business. Exits with 2."""
    if TASK_SAMPLE not in sender.app.tasks:
        return
    from celery import concurrency  # it reads CELERY_CUSTOM_WORKER_POOL when it is imported, so not too soon

    pool = concurrency.get_implementation(sender.pool_cls)
    names = [f"{base.__module__}:{base.__qualname__}" for base in getattr(pool, "__mro__", ())]
    if POOL in names:
        return
    _refuse(
        f"the pool {names[0] if names else pool} cannot run brimful's tasks. Leave -P away "
        "(`celery -A brimful worker`), or start `brimful worker`."
    )


def _refuse(why: str) -> NoReturn:
    print(f"brimful worker: {why}", file=sys.__stderr__, flush=True)
    raise SystemExit(int(ExitCode.USAGE))


def app_for(redis_url: str | None) -> Celery:
    """An app of its own that publishes there, whatever BRIMFUL_REDIS_URL says; it has no tasks and makes no events of
    what it sends."""
    publisher = App(APP, set_as_current=False, amqp="brimful.runtime.redaction:DiscreetAMQP")
    publisher.add_defaults(lambda: {**configuration(redis_url), "task_send_sent_event": False})
    # Celery reads its settings when first asked, which is no affair for several threads at once.
    publisher.finalize()
    _ = publisher.conf.broker_url, publisher.amqp
    return publisher
