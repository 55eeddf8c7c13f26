"""Renews this worker's hold on its tasks, so that a dead worker's can be told apart and given to others soon.

kombu's sign of life is a message's score in ``unacked_index``, set at delivery: a task longer than the visibility
timeout would be delivered twice. Here the score is renewed while the task lives, from a thread and a client of its own,
so that neither a busy main thread nor a busy loop delays it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import Celery

from brimful_worker.broker.unacked import Leases, leases
from brimful_worker.metrics import catalogue as metrics

log = logging.getLogger(__name__)

MAX_LOST = 5
"""A task with which so many workers have died is a failure, not another worker's death."""

_RETRY_S = 0.5


class Renewal:
    """``start`` and ``stop``. Reads the broker's address and keys from the Celery app."""

    def __init__(self, app: Celery, held: Leases = leases) -> None:
        self._app = app
        self._leases = held
        options = app.conf.broker_transport_options or {}
        self.visibility_s = float(options.get("visibility_timeout", 3600))
        self.interval_s = min(10.0, self.visibility_s / 4)
        self._connection: Any = None
        self._channel: Any = None
        self._client: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="brimful-renewal", daemon=True)
        held.grace_s = max(3.0, 1.5 * self.interval_s)
        held.patience_s = 2.5 * self.interval_s

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after one last try to pay what is owed. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self.visibility_s / 2)

    def _main(self) -> None:
        away = False
        while True:
            try:
                self._renew()
            except Exception as error:  # whatever it is, the next try makes a new connection
                metrics.RENEWALS_FAILED.inc()
                if not away:
                    log.warning("cannot renew this worker's tasks: %s; trying on", error)
                away = True
                self._leases.lost()
                self._disconnect()
            else:
                if away:
                    log.info("Redis is back")
                away = False
            if self._stop.wait(_RETRY_S if away else self.interval_s):
                break
        if self._leases.owed() and not away:
            try:
                self._renew()
            except Exception as error:
                log.warning("%d acknowledgements are still owed: %s", len(self._leases.owed()), error)
        self._disconnect()

    def _renew(self) -> None:
        if self._client is None:
            self._connect()
        seconds, micros = self._client.time()
        now = seconds + micros / 1e6
        mine, owed = self._leases.renewable() - self._leases.owed(), self._leases.owed()
        with self._client.pipeline(transaction=False) as pipe:
            if mine:
                # XX: what was acknowledged meanwhile does not come back to life
                pipe.zadd(self._channel.unacked_index_key, dict.fromkeys(mine, now), xx=True)
            if owed:
                pipe.zrem(self._channel.unacked_index_key, *owed)
                pipe.hdel(self._channel.unacked_key, *owed)
            pipe.execute()
        self._leases.paid(owed)
        self._leases.renewed(now)

    def _connect(self) -> None:
        wait_s = max(1.0, self.interval_s / 2)  # a hanging server must not cost more than the next renewal
        options = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s}
        self._connection = self._app.connection_for_read(transport_options=options)
        self._channel = self._connection.channel()
        self._client = self._channel._create_client()

    def _disconnect(self) -> None:
        connection, self._connection, self._client = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                log.debug("closing the renewal's connection: %r", error)
