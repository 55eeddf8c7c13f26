"""Renews this worker's unacknowledged messages in Redis while it lives, so that other workers do not requeue them.

A message's score in kombu's ``unacked_index`` is set at delivery, and a task longer than the visibility timeout would
be delivered twice. This thread renews the score while the task lives, with a client of its own, so that neither a busy
main thread nor a busy event loop delays it. It also sends acknowledgements deferred while Redis was away.
The messages of a dead worker, which are renewed no longer, are requeued by ``QoS.restore_visible`` (``qos.py``).
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import Celery

from brimful.state.redis_retry import reply_text
from brimful_worker.broker.qos import begun_key
from brimful_worker.broker.unacked import UnackedMessages, unacked
from brimful_worker.metrics import catalogue as metrics

log = logging.getLogger(__name__)

_RETRY_S = 0.5


class Renewal:
    """Takes the broker's address, keys and visibility timeout from the Celery app."""

    def __init__(self, app: Celery, messages: UnackedMessages = unacked) -> None:
        self._app = app
        self._messages = messages
        options = app.conf.broker_transport_options or {}
        self._visibility_s = float(options.get("visibility_timeout", 3600))
        self._interval_s = min(10.0, self._visibility_s / 4)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="brimful-renewal", daemon=True)
        messages.stable_after_s = max(3.0, 1.5 * self._interval_s)
        messages.gap_s = 2.5 * self._interval_s

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after one last try to send deferred acknowledgements. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._visibility_s / 2)

    def _main(self) -> None:
        wait_s = max(1.0, self._interval_s / 2)  # a hanging server must not cost more than the next renewal
        timeouts = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s}
        away = False
        while not self._stop.is_set():
            try:
                with self._app.connection_for_read(transport_options=timeouts) as connection:
                    channel = connection.channel()
                    client = channel.blocking_client()
                    while not self._stop.is_set() or self._messages.owed():
                        self._renew(channel, client)
                        if away:
                            log.info("Redis is back: task messages are renewed")
                        away = False
                        self._stop.wait(self._interval_s)
            except Exception as error:  # whatever it is, the next try makes a new connection
                metrics.RENEWALS_FAILED.inc()
                if not away:
                    why = reply_text(error)  # without the command, which holds messages
                    log.warning("cannot renew this worker's task messages: %s; retrying until Redis is back", why)
                away = True
                self._messages.renewal_failed()
                self._stop.wait(_RETRY_S)
        if owed := self._messages.owed():
            log.warning("%d acknowledgements could not be sent to Redis", owed)

    def _renew(self, channel: Any, client: Any) -> None:
        seconds, micros = client.time()
        now = seconds + micros / 1e6
        held, deferred = self._messages.to_renew(), self._messages.deferred_acks()
        with client.pipeline(transaction=False) as pipe:
            if held:
                # XX: a message acknowledged meanwhile is not added again
                pipe.zadd(channel.unacked_index_key, dict.fromkeys(held, now), xx=True)
            if deferred:
                pipe.zrem(channel.unacked_index_key, *deferred)
                pipe.hdel(channel.unacked_key, *deferred)
                pipe.hdel(begun_key(channel.unacked_key), *deferred)
            pipe.execute()
        self._messages.acks_sent(deferred)
        self._messages.renewed(now)
