"""The Celery app, found by ``celery -A brimful``. JSON only.

Importing it reads nothing from the environment: Celery calls :func:`configuration` when it first needs a setting.
BRIMFUL_REDIS_URL beats Celery's own ``-b`` and CELERY_BROKER_URL, which may be meant for another app of the process.
Without any of them, the first connection raises SettingError, where Celery itself would try a broker on this machine.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

from celery import Celery
from celery.app.utils import Settings as CelerySettings
from celery.signals import before_task_publish, celeryd_init, worker_init
from kombu import Queue, pools  # type: ignore[attr-defined]

from brimful.addresses import FleetAddress
from brimful.errors import ExitCode, RedisUnreachable, RedisUnusable
from brimful.names import APP, FLEET_SETTING, QUEUES, TASK_SAMPLE, TASK_SHARD, Workload, of_fleet
from brimful.runtime import fork, tracing
from brimful.runtime.extras import missing, needs
from brimful.state.probes import check_servers
from brimful.state.rabbitmq.celery_settings import CONFIRM_S
from brimful.state.redis_url import NOT_SET, address_of, broker_options, broker_url, celery_settings, required
from brimful.state.result_consumer import keep_waiting

_CELERYS_URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
POOL = "brimful_worker.pool:TaskPool"
"""A name, since clients must not import it. ``-P custom`` selects it too, if CELERY_CUSTOM_WORKER_POOL is set to it:
Celery reads that variable before it loads any app."""


class Configuration(CelerySettings):  # type: ignore[misc]  # celery ships no types
    """Celery's settings. The URLs among them are read from Celery's own variables only where brimful's is not set."""

    @property
    def broker_url(self) -> Any:
        return self.get("broker_url") or super().broker_url

    @property
    def broker_read_url(self) -> Any:
        return self.get("broker_url") or super().broker_read_url

    @property
    def broker_write_url(self) -> Any:
        return self.get("broker_url") or super().broker_write_url

    @property
    def result_backend(self) -> Any:
        return self.get("result_backend") or super().result_backend


class App(Celery):  # type: ignore[misc]  # celery ships no types
    """A Celery app without a default broker: connecting raises SettingError if none is set. Safe to fork after use.

    Private parts of celery 5.7.0 and kombu 5.7.0:
        celery.app.base.Celery: _backend_cache, _conf, _get_backend, _pool
        celery.app.amqp.AMQP: _producer_pool
        celery.backends.redis.ResultConsumer: _pubsub, _reset_sync, subscribed_to
        kombu.pools: connections, producers
        kombu.utils.objects.cached_property: lock
    """

    checks_key = False
    """Whether the first task that is sent raises FleetTaken where the fleet is another API key's."""
    control_cls = "brimful.state.revocations:RecordingControl"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Celery fills this very object when a setting is first used. Its own __setattr__ would make this a setting.
        object.__setattr__(self._conf, "__class__", Configuration)
        fork.register(self)

    @cached_property
    def AsyncResult(self) -> Any:  # noqa: N802 - Celery's name
        """The class of handles."""
        return self.subclass_with_self("brimful.state.result_consumer:SampleResult")

    def _get_backend(self) -> Any:
        return keep_waiting(super()._get_backend())

    def after_fork(self) -> None:
        """Celery's own hook runs in children of multiprocessing only, and closes what the parent still uses."""
        _unlock_properties(type(self), type(self.__dict__.get("amqp")), type(self._backend_cache))
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

    def send_task(self, *arguments: Any, queue: Any = None, **options: Any) -> Any:
        """A plain queue is the fleet's own: another fleet's workers have another API key."""
        if self.checks_key:
            from brimful.config import Settings  # pydantic: see configuration
            from brimful.state.fleets import check_submitter

            check_submitter(Settings.load())
            self.checks_key = False
        if queue in QUEUES:
            queue = of_fleet(self.conf[FLEET_SETTING], queue)
        if self.conf.broker_transport_options.get("confirm_publish"):
            options.setdefault("confirm_timeout", CONFIRM_S)  # RabbitMQ takes nothing while it lacks memory or disk
        where = {"messaging.destination.name": queue, "celery.task_name": arguments[0] if arguments else None}
        with tracing.sending("brimful enqueue", where) as span:
            if span is None:
                return super().send_task(*arguments, queue=queue, **options)
            before_task_publish.connect(_keep_trace, weak=False, dispatch_uid="brimful")
            sent = super().send_task(*arguments, queue=queue, **options)
            span.set_attribute("messaging.message.id", sent.id)
            return sent

    def connection_for_read(self, url: str | None = None, **options: Any) -> Any:
        return super().connection_for_read(required(url or self.conf.broker_read_url), **options)

    def connection_for_write(self, url: str | None = None, **options: Any) -> Any:
        return super().connection_for_write(required(url or self.conf.broker_write_url), **options)


def _keep_trace(headers: Any = None, **_: Any) -> None:
    """Write the headers of brimful's span into a message. Connected last: Celery's instrumentation writes those of a
    span of its own, which it never ends if the task is another app's."""
    if isinstance(headers, dict):
        headers.update(tracing.sent_headers())


app = App(APP, set_as_current=False, include=["brimful.tasks"], amqp="brimful.runtime.redaction:DiscreetAMQP")
app.checks_key = True


def configuration(address: FleetAddress | None = None) -> dict[str, Any]:
    """Celery's settings, from brimful's. ``address`` None: the environment's. Raises SettingError."""
    from brimful.config import Settings  # pydantic: a service pays for it at its first request, not at its import

    settings = Settings.load() if address is None else Settings.load(redis_url=address.redis_url, fleet=address.fleet)
    fleet, visibility_s = settings.fleet, settings.visibility_timeout_s
    if settings.redis_url is not None:
        # Settings add their TLS files to a URL.
        address = replace(address or address_of(settings), redis_url=settings.redis_url)
    queues = [of_fleet(fleet, name) for name in QUEUES]
    return {
        **(_without_url(visibility_s, fleet) if address is None else celery_settings(address, visibility_s)),
        FLEET_SETTING: fleet,
        # JSON only: unpickling would run code of anybody who can write to Redis.
        "accept_content": ["json"],
        "task_queues": [Queue(name, routing_key=name) for name in queues],  # type: ignore[no-untyped-call]
        "task_default_queue": of_fleet(fleet, Workload.BATCH),
        "task_routes": {
            TASK_SHARD: {"queue": of_fleet(fleet, Workload.BATCH)},
            TASK_SAMPLE: {"queue": of_fleet(fleet, Workload.INTERACTIVE)},
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
        "result_expires": settings.result_expires_s,
        # Callers that wait for a result meet their own timeout, a few seconds late at most.
        "redis_socket_timeout": 5.0,
        "redis_socket_connect_timeout": 5.0,
        "result_backend_always_retry": True,
        "result_backend_base_sleep_between_retries_ms": 200,
        "result_backend_max_sleep_between_retries_ms": 2000,
        "result_backend_thread_safe": True,
    }


def _without_url(visibility_timeout_s: int, fleet: str) -> dict[str, Any]:
    """Celery's own broker URL, for results too if its transport can hold them."""
    url = os.environ.get("CELERY_BROKER_URL", "")
    options = broker_options(visibility_timeout_s, fleet)
    return {
        "broker_url": None,
        "result_backend": url if url.startswith(("redis", "sentinel://")) else None,
        "broker_transport_options": options,
        "result_backend_transport_options": options,
    }


app.add_defaults(configuration)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def require_parts(instance: Any, **_: Any) -> None:
    """Exit with 2 if the worker's packages are not installed, or there is no Redis that the fleet could ever use: a
    broker alone is not enough."""
    if TASK_SAMPLE not in instance.app.tasks:
        return
    if absent := missing():
        _refuse(needs("a worker", absent))
    from brimful.config import Settings

    settings = Settings.load()
    if not (url := settings.redis_url):
        _refuse(NOT_SET)
    for name in _CELERYS_URLS:
        if os.environ.get(name, "") not in ("", url, broker_url(url), settings.broker_url):
            print(f"brimful worker: {name} (or -b) is not used: BRIMFUL_REDIS_URL is set", file=sys.__stderr__)
    try:
        check_servers(settings, timeout_s=1.0)
    except RedisUnusable as error:
        _refuse(str(error))
    except RedisUnreachable:
        pass  # the worker waits for it, and for RabbitMQ


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


def _unlock_properties(*classes: type) -> None:
    """After a fork: a thread of the parent may have been in one, and kombu's take their lock at each use."""
    for cls in {base for one in classes for base in one.__mro__}:
        for each in vars(cls).values():
            if isinstance(each, cached_property) and hasattr(each, "lock"):
                each.lock = threading.RLock()


def app_for(address: FleetAddress) -> Celery:
    """A new app without tasks that publishes to a fleet, and sends no task-sent events."""
    publisher = App(APP, set_as_current=False, amqp="brimful.runtime.redaction:DiscreetAMQP")
    publisher.add_defaults(lambda: {**configuration(address), "task_send_sent_event": False})
    # Celery loads its settings when one is first used, and not thread-safely.
    publisher.finalize()
    _ = publisher.conf.broker_url, publisher.amqp
    return publisher
