"""What the client's blocking and asyncio faces share: settings, and single requests as Celery tasks.

Where Redis does not answer, enqueuing raises RedisUnreachable, the first time at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any

from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis import RedisError

from brimful.celery import app_for
from brimful.client.mapping import Asked, MapRun
from brimful.config import Settings
from brimful.errors import RedisUnreachable
from brimful.names import TASK_SAMPLE, Workload
from brimful.packing.units import PackOption, parse_pack
from brimful.request import Request
from brimful.state.redis_url import required, without_password


class Client:
    """What :class:`brimful.client.fleet.Fleet` and :class:`brimful.client.fleet.AsyncFleet` are made from; not for
    callers."""

    def __init__(self, redis_url: str | None = None) -> None:
        """``redis_url`` None: BRIMFUL_REDIS_URL. Nothing is connected before it is used. Raises SettingError."""
        self._settings = Settings.load(redis_url=redis_url)
        self._url = required(self._settings.redis_url)
        self._app = app_for(self._url)
        self._reached = False

    def _send(self, request: Asked, workload: Workload | str | None, fields: Mapping[str, Any]) -> AsyncResult[Any]:
        """Raises RedisUnreachable."""
        raw = request.as_message() if isinstance(request, Request) else request
        queue = Workload(workload or Workload.INTERACTIVE).value
        try:
            if not self._reached:
                self._reach()
            sent = self._app.send_task(TASK_SAMPLE, args=[raw], kwargs={**fields, "workload": queue}, queue=queue)
        except (OperationalError, RedisError, OSError, RuntimeError) as error:  # RuntimeError: celery's result backend
            raise RedisUnreachable(
                f"cannot enqueue at {without_password(self._url)}: {error}; is BRIMFUL_REDIS_URL right, and Redis up?"
            ) from None
        return sent

    def _reach(self) -> None:
        """Once, so that a wrong URL is told at once: Celery's result backend would try for long."""
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            connection.default_channel.client.ping()
        self._reached = True

    def _disconnect(self) -> None:
        """Celery's connections, of which it keeps some for each purpose."""
        with contextlib.suppress(Exception):  # they are ours to throw away
            consumer = self._app.backend.result_consumer
            consumer.stop()
            consumer._pubsub = None  # else a handle that is dropped later would connect anew, to unsubscribe
            self._app.backend.client.connection_pool.disconnect()
        with contextlib.suppress(Exception):
            self._app.close()

    def _revoke(self, handles: Iterable[AsyncResult[Any] | str]) -> None:
        ids = [handle if isinstance(handle, str) else handle.id for handle in handles]
        if ids:
            self._app.control.revoke(ids, terminate=True)

    def _map_run(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        ordered: bool,
        pack: PackOption | str,
        workload: Workload | str,
        fields: Mapping[str, Any],
    ) -> MapRun:
        return MapRun(
            requests,
            self._settings,
            pack=parse_pack(pack),
            workload=Workload(workload),
            ordered=ordered,
            fields=fields,
        )
