"""Sends a worker's task events in batches. Celery would publish them at each pass of its hub, a tenth of its CPU.

Private parts of celery 5.7.0:
    celery.events.dispatcher.EventDispatcher: buffer_limit, flush
    celery.worker.consumer.consumer.Consumer: _flush_events, on_send_event_buffered
"""

from __future__ import annotations

from typing import Any

from celery.worker.consumer.consumer import Consumer

_WAIT_S = 0.02
"""How long an event waits for others. Flower shows it as much later."""
_MOST = 100
"""Events in one message at most; one is about 400 bytes."""


class EventBatches:
    """This process's. Main thread only."""

    def __init__(self) -> None:
        self._consumer: Any = None
        self._waiting = False

    def buffered(self, consumer: Any) -> None:
        """An event was added to the consumer's buffer: send it in a moment, unless a timer for that runs."""
        self._consumer = consumer
        if not self._waiting and consumer.hub is not None:
            self._waiting = True
            consumer.event_dispatcher.buffer_limit = _MOST
            consumer.hub.call_later(_WAIT_S, self.flush)

    def flush(self) -> None:
        """Send what waits. Does nothing without a connection; the events then wait for the next one."""
        self._waiting = False
        if self._consumer is not None:
            self._consumer._flush_events()


event_batches = EventBatches()


def install() -> None:
    """For this process. Idempotent."""
    Consumer.on_send_event_buffered = _on_send_event_buffered


def _on_send_event_buffered(consumer: Consumer) -> None:
    event_batches.buffered(consumer)
