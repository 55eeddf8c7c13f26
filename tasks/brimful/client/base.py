"""What ``Fleet`` and ``AsyncFleet`` share: settings, maps, and single requests as Celery tasks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from amqp import AMQPError
from celery.result import AsyncResult
from kombu.exceptions import EncodeError, OperationalError
from redis import RedisError

from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.client.arguments import check_message, checked_workload
from brimful.client.group import GroupOptions
from brimful.client.group_run import GroupRun
from brimful.client.mapping import Asked, MapRun
from brimful.config import Settings
from brimful.errors import RedisUnreachable, SampleTimeout
from brimful.fields import warn_of_unknown
from brimful.names import IDEMPOTENCY_KEY, TASK_SAMPLE, Workload
from brimful.packing.units import PackOption
from brimful.request import Request
from brimful.runtime import fork
from brimful.runtime.port import in_process
from brimful.schema import HEADER, MESSAGES
from brimful.state.fleets import check_submitter
from brimful.state.probes import check_servers, unreachable
from brimful.state.rabbitmq.reach import broker_unreachable
from brimful.state.redis_url import address_of, close_sentinels
from brimful.tasks import Handle, check_fields

log = logging.getLogger(__name__)

_TESTING = "redis://brimful-testing/0"
"""Never connected to: a test's backend answers."""

Results = TypeVar("Results")
"""A generator or an async generator of :class:`Sampled`."""


class Client(Generic[Results]):
    """The base class of ``Fleet`` and ``AsyncFleet``. Not public."""

    def __init__(self, redis_url: str | None = None, *, fleet: str | None = None) -> None:
        """Where an argument is None, BRIMFUL_REDIS_URL or BRIMFUL_FLEET is used. Connects when first used. Raises
        SettingError."""
        self._settings = Settings.load(redis_url=redis_url, fleet=fleet).without_guess()
        settings = self._settings
        address = FleetAddress(_TESTING, settings.fleet) if in_process() else address_of(settings)
        self._url = address.redis_url
        self._app = app_for(address)
        _ = self._app.backend  # threads that need it first at the same time would make several
        self._reached = False
        fork.register(self)

    def after_fork(self) -> None:
        """Called in a forked child process. The Celery app has a call of its own."""

    def map(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        *,
        pack: PackOption | str = "auto",
        workload: Workload | str = Workload.BATCH,
        weight: float | None = None,
        **fields: Any,
    ) -> Results:
        """Sample many requests, and iterate over one :class:`Sampled` for each, in their order.

        ``for one in fleet.map(["a", {"prompt": "b", "n": 2}], max_tokens=8): print(one.index, one.texts)``

        ``requests`` may be endless: it is read as there is room, at most 20,000 ahead of the result that is awaited; an
        iterable that is not async is read in a thread. ``fields`` are defaults, which a request's own fields override.
        ``pack``: how many prompts share one call to the provider: ``"auto"``, ``"off"`` or a number. ``weight``: the
        map's share beside other maps and runs, from 0.01 to 100; BRIMFUL_WEIGHT by default, else 1.

        A request that failed is a Sampled with a ``failure``; only its ``text``, ``texts`` and ``check()`` raise.
        Closing the generator cancels what is in progress; leaving a blocking ``for`` loop does so too. Raises
        RedisUnreachable if Redis does not answer at the start, RedisRefused if it refuses commands, and what
        ``requests`` raises.
        """
        warn_of_unknown(fields)
        return self._results(MapRun(requests, self._settings, pack, workload, weight, fields, ordered=True))

    def as_completed(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        *,
        pack: PackOption | str = "auto",
        workload: Workload | str = Workload.BATCH,
        weight: float | None = None,
        **fields: Any,
    ) -> Results:
        """As :meth:`map`, but each result as soon as it is there; ``index`` is its request's place."""
        warn_of_unknown(fields)
        return self._results(MapRun(requests, self._settings, pack, workload, weight, fields, ordered=False))

    def _group_run(
        self,
        prompts: Iterable[Asked],
        options: GroupOptions,
        workload: Workload | str,
        weight: float | None,
        fields: Mapping[str, Any],
    ) -> GroupRun:
        warn_of_unknown(fields)
        return GroupRun(prompts, self._settings, options, workload, weight, fields)

    def _results(self, run: MapRun) -> Results:
        raise NotImplementedError

    def _send(
        self,
        request: Asked,
        workload: Workload | str | None,
        fields: Mapping[str, Any],
        task_id: str | None,
        idempotency_key: str | None,
    ) -> Handle:
        """Raises BadRequest, RedisUnreachable and FleetTaken."""
        raw = request.as_message() if isinstance(request, Request) else request
        own = request.get("workload") if isinstance(request, Mapping) else None
        queue = checked_workload(workload or own or Workload.INTERACTIVE).value
        arguments = {**fields, "workload": queue}
        if idempotency_key is not None:
            arguments[IDEMPOTENCY_KEY] = idempotency_key
        if (backend := in_process()) is not None:
            check_message(_named(raw, arguments))
            answered: Handle = backend.submit(raw, arguments, task_id)
            return answered
        with self._reporting():
            if not self._reached:
                check_servers(self._settings)  # with a wrong URL, Celery's result backend would retry for long
                check_submitter(self._settings)
                self._reached = True
            try:
                sent: Handle = self._app.send_task(
                    TASK_SAMPLE, args=[raw], kwargs=arguments, queue=queue, task_id=task_id, headers={HEADER: MESSAGES}
                )
            except EncodeError:
                check_message(_named(raw, arguments))
                raise
            return sent

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """What Celery raises where a server is away becomes RedisUnreachable or BrokerUnreachable."""
        try:
            yield
        except (OperationalError, AMQPError) as error:
            # Celery's result backend raises OperationalError too, but with an error of Redis as its cause.
            if self._settings.broker_url is None or isinstance(error.__cause__, RedisError):
                raise unreachable(self._url, error) from None
            raise broker_unreachable(self._settings.broker_url, error) from None
        except (RedisError, OSError, RuntimeError) as error:  # RuntimeError: the result backend
            raise unreachable(self._url, error) from None

    def _disconnect(self) -> None:
        """Close Celery's connections to the broker and to the result backend."""
        with contextlib.suppress(Exception):  # they may be broken, and are thrown away
            self._app.backend.result_consumer.stop()
            self._app.backend.client.connection_pool.disconnect()
            close_sentinels(self._app.backend.client.connection_pool)
        with contextlib.suppress(Exception):
            self._app.close()

    def _revoke(self, handles: Iterable[Handle | AsyncResult[Any] | str]) -> None:
        """Raises TypeError for what is no handle, and RedisUnreachable."""
        ids = [_id_of(handle) for handle in handles]
        if (backend := in_process()) is not None:
            backend.cancel(ids)
        elif ids:
            with self._reporting():
                self._app.control.revoke(ids, terminate=True)

    def _abandon(self, *ids: str) -> None:
        """Revoke requests that their callers do not wait for any more."""
        try:
            self._revoke(ids)
        except RedisUnreachable as error:
            log.warning("brimful: request %s was abandoned and could not be cancelled: %s", ", ".join(ids), error)


def check_names(request: Asked, fields: Mapping[str, Any]) -> None:
    """Warn of fields that may be misspelt. Raises BadRequest."""
    warn_of_unknown(check_fields(fields, request.fields if isinstance(request, Request) else request))


def _id_of(handle: Any) -> str:
    id = handle if isinstance(handle, str) else getattr(handle, "id", None)
    if not isinstance(id, str):
        raise TypeError(f"cancel: {type(handle).__name__} is not a handle or a task id; a list as cancel(*handles)")
    return id


def timed_out(timeout: float | None) -> SampleTimeout:
    return SampleTimeout(f"no completion within {timeout:g} s; the request is cancelled", "timeout")


def _named(raw: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**(raw if isinstance(raw, Mapping) else {"prompt": raw}), **fields}
