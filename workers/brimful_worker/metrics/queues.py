"""Metrics of the broker's queues. One process of a fleet exposes them, Flower: in every worker they would be the same
figures, each read from Redis again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from brimful.addresses import FleetAddress
from brimful.errors import RedisUnreachable
from brimful.state.broker_queues import read_oldest, read_queues
from brimful.state.fleets import Registration
from brimful.state.keys import FLEETS
from brimful.state.redis_retry import REDIS_ERRORS, reply_text
from brimful_worker.metrics.kinds import Gauge

if TYPE_CHECKING:
    import redis

log = logging.getLogger(__name__)

MESSAGES = Gauge("brimful_queue_messages", "Task messages that wait in a queue.", "messages", ("queue",))
OLDEST = Gauge(
    "brimful_queue_oldest_seconds",
    "How long the oldest message of a queue has waited; 0 = the queue is empty.",
    "seconds",
    ("queue",),
)
UNACKED = Gauge(
    "brimful_queue_unacked_messages",
    "Task messages delivered to workers, which run them or fetched them ahead.",
    "messages",
)

QUEUE_CATALOGUE = (MESSAGES, OLDEST, UNACKED)


class QueueCollector:
    """A collector of prometheus_client. Each scrape reads the broker; while it is away there are no series. RabbitMQ
    says only how many messages wait: there are no series of the other two metrics then.

    The label ``key`` is the tag of the key that is registered for the fleet, empty before its first worker. The age of
    a message without the header ``sent_at``, from a sender without brimful, counts from when this collector first saw
    it as the oldest: a lower bound.
    """

    def __init__(
        self,
        client: redis.Redis,
        address: FleetAddress,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``client`` decodes no replies."""
        self._client, self._address = client, address
        self._clock = clock
        self._first_seen: dict[str, tuple[bytes, float]] = {}
        self._away = False

    def describe(self) -> list[Any]:
        """None: prometheus_client would otherwise collect at the registration."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        try:
            queues = read_queues(self._client, self._address)
            ages = self._ages(self._clock()) if self._address.rabbitmq_url is None else {}
            tag = self._tag()
        except (RedisUnreachable, *REDIS_ERRORS) as error:
            if not self._away:
                log.warning("no metrics of the queues: %s; the next scrape tries again", reply_text(error))
            self._away = True
            return
        self._away = False
        messages, oldest, unacked = (
            GaugeMetricFamily(metric.name, metric.description, labels=("key", *metric.labels))
            for metric in QUEUE_CATALOGUE
        )
        for queue, length in queues.lengths.items():
            messages.add_metric((tag, queue), length)
            oldest.add_metric((tag, queue), ages.get(queue, 0.0))
        yield messages
        if queues.unacked is not None:
            unacked.add_metric((tag,), queues.unacked)
            yield from (oldest, unacked)

    def _ages(self, now: float) -> dict[str, float]:
        """Queue -> age of its oldest message, in seconds."""
        ages: dict[str, float] = {}
        seen, self._first_seen = self._first_seen, {}
        for oldest in read_oldest(self._client, self._address.fleet):
            digest, since = seen.get(oldest.list, (b"", now))
            self._first_seen[oldest.list] = oldest.digest, since if digest == oldest.digest else now
            known = oldest.age_s if oldest.age_s is not None else now - self._first_seen[oldest.list][1]
            ages[oldest.queue] = max(known, ages.get(oldest.queue, 0.0))
        return ages

    def _tag(self) -> str:
        value: Any = self._client.hget(FLEETS, self._address.fleet)
        registered = Registration.parse(value.decode() if isinstance(value, bytes) else value)
        return registered.tag if registered is not None else ""
