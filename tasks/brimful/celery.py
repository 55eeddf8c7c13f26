"""The Celery app, found by ``celery -A brimful``. JSON only.

Importing it reads nothing from the environment: Celery calls :func:`configuration` when it first needs a setting.
Without BRIMFUL_REDIS_URL (or Celery's own ``-b`` or CELERY_BROKER_URL), the first connection raises SettingError, where
Celery itself would try a broker on this machine.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from celery import Celery
from celery.signals import celeryd_init, worker_init
from kombu import Queue, pools  # type: ignore[attr-defined]

from brimful.config import Settings
from brimful.errors import ExitCode
from brimful.names import APP, QUEUES, TASK_SAMPLE, TASK_SHARD, Workload
from brimful.runtime import fork
from brimful.runtime.extras import missing, needs
from brimful.state.redis_url import NOT_SET, broker_options, broker_url, required

POOL = "brimful_worker.pool:TaskPool"
"""A name, since clients must not import it. ``-P custom`` selects it too, if CELERY_CUSTOM_WORKER_POOL is set to it:
Celery reads that variable before it loads any app."""


class App(Celery):  # type: ignore[misc]  # celery ships no types
    """A Celery app without a default broker: connecting raises SettingError if none is set. Safe to fork after use.

    Private parts of celery 5.7.0 and kombu 5.7.0:
        celery.app.base.Celery: _backend_cache, _pool
        celery.app.amqp.AMQP: _producer_pool
        celery.backends.redis.ResultConsumer: _pubsub, _reset_sync, subscribed_to
        kombu.pools: connections, producers
    """

    control_cls = "brimful.state.revocations:RecordingControl"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        fork.register(self)

    def after_fork(self) -> None:
        """Celery's own hook runs in children of multiprocessing only, and closes what the parent still uses."""
        fork.keep_inherited(self.__dict__.get("_pool"), *pools.connections.values(), *pools.producers.values())
        pools.connections.clear()
        pools.producers.clear()
        self.__dict__["_pool"] = None
        if (amqp := self.__dict__.get("amqp")) is not None:
            amqp._producer_pool = None
        backend = self._backend_cache
        consumer: Any = getattr(backend, "result_consumer", None)
        if hasattr(consumer, "_pubsub"):  # handles of the parent's refer to this backend
            fork.keep_inherited(consumer._pubsub, backend.__dict__.pop("client", None))
            consumer._reset_sync()
            consumer._pubsub = None
            consumer.subscribed_to = set()

    def connection_for_read(self, url: str | None = None, **options: Any) -> Any:
        return super().connection_for_read(required(url or self.conf.broker_read_url), **options)

    def connection_for_write(self, url: str | None = None, **options: Any) -> Any:
        return super().connection_for_write(required(url or self.conf.broker_write_url), **options)


app = App(APP, set_as_current=False, include=["brimful.tasks"], amqp="brimful.runtime.redaction:DiscreetAMQP")


def configuration(redis_url: str | None = None) -> dict[str, Any]:
    """Celery's settings, from brimful's. ``redis_url`` None: the environment's. Raises SettingError."""
    settings = Settings.load(redis_url=redis_url)
    url = broker_url(settings.redis_url) if settings.redis_url else None
    return {
        "broker_url": url,
        "result_backend": url or _celerys_own(),
        # JSON only: unpickling would run code of anybody who can write to Redis.
        "accept_content": ["json"],
        "task_queues": [Queue(name, routing_key=name) for name in QUEUES],  # type: ignore[no-untyped-call]
        "task_default_queue": Workload.BATCH.value,
        "task_routes": {
            TASK_SHARD: {"queue": Workload.BATCH.value},
            TASK_SAMPLE: {"queue": Workload.INTERACTIVE.value},
        },
        "task_acks_late": True,
        "task_track_started": True,
        # A task whose worker died after storing the result, but before acknowledging the message, is not run again.
        "worker_deduplicate_successful_tasks": True,
        # Without the worker's packages the pool cannot be imported, and require_parts could not say which are missing.
        "worker_pool": "solo" if missing() else POOL,
        "worker_concurrency": settings.concurrency,
        "worker_prefetch_multiplier": 1,
        # Tasks with a countdown that a worker may hold besides the running ones.
        "worker_eta_task_limit": 1000,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "worker_hijack_root_logger": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
        "broker_transport_options": broker_options(settings.redis_url, settings.visibility_timeout_s),
        "result_backend_transport_options": broker_options(settings.redis_url, settings.visibility_timeout_s),
        "result_expires": settings.result_expires_s,
        "result_backend_always_retry": True,
        "result_backend_base_sleep_between_retries_ms": 200,
        "result_backend_max_sleep_between_retries_ms": 2000,
        "result_backend_thread_safe": True,
    }


def _celerys_own() -> str | None:
    """Celery's broker URL, for results too if its transport can hold them."""
    url = os.environ.get("CELERY_BROKER_URL", "")
    return url if url.startswith(("redis", "sentinel://")) else None


app.add_defaults(configuration)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def require_parts(instance: Any, **_: Any) -> None:
    """Exit with 2 if the worker's packages are not installed, or BRIMFUL_REDIS_URL is not set: a broker alone is not
    enough."""
    if TASK_SAMPLE not in instance.app.tasks:
        return
    if absent := missing():
        _refuse(needs("a worker", absent))
    if not Settings.load().redis_url:
        _refuse(NOT_SET)


@worker_init.connect  # type: ignore[untyped-decorator]
def require_pool(sender: Any, **_: Any) -> None:
    """Exit with 2 if a worker of this app has another pool, in which every task would fail."""
    if TASK_SAMPLE not in sender.app.tasks:
        return
    from celery import concurrency  # reads CELERY_CUSTOM_WORKER_POOL when it is imported

    pool = concurrency.get_implementation(sender.pool_cls)
    names = [f"{base.__module__}:{base.__qualname__}" for base in getattr(pool, "__mro__", ())]
    if POOL in names:
        return
    _refuse(
        f"the pool {names[0] if names else pool} cannot run brimful's tasks: omit -P "
        "(`celery -A brimful worker`), or start `brimful worker`"
    )


def _refuse(why: str) -> NoReturn:
    print(f"brimful worker: {why}", file=sys.__stderr__, flush=True)
    raise SystemExit(int(ExitCode.USAGE))


def app_for(redis_url: str | None) -> Celery:
    """A new app without tasks that publishes to ``redis_url``, and sends no task-sent events."""
    publisher = App(APP, set_as_current=False, amqp="brimful.runtime.redaction:DiscreetAMQP")
    publisher.add_defaults(lambda: {**configuration(redis_url), "task_send_sent_event": False})
    # Celery loads its settings when one is first used, and not thread-safely.
    publisher.finalize()
    _ = publisher.conf.broker_url, publisher.amqp
    return publisher
