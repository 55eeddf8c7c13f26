"""Adds the metrics of the broker's queues to Flower's ``/metrics``. Runs in Flower's own process.

Patched, as read in Flower 2.2.0: ``flower.views.monitor.Metrics.get``, so that a scrape waits for Redis on a thread and
not on Flower's loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from brimful.config import Settings
from brimful.state.redis_url import address_of, sync_redis_client
from brimful_worker.metrics.queues import QueueCollector

_TIMEOUT_S = 5.0


def install() -> None:
    """Patch this process's Flower. Idempotent; does nothing where BRIMFUL_REDIS_URL is not set."""
    import prometheus_client
    from flower.views.monitor import Metrics

    settings = Settings.load()
    if hasattr(Metrics, "brimful_queues") or not settings.redis_url:
        return
    client = sync_redis_client(
        settings.redis_url, decode_responses=False, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )
    prometheus_client.REGISTRY.register(QueueCollector(client, address_of(settings)))

    async def get(self: Any) -> None:
        self.application.purge_offline_worker_metrics()
        self.write(await asyncio.to_thread(prometheus_client.generate_latest))
        self.set_header("Content-Type", "text/plain")

    Metrics.get, Metrics.brimful_queues = get, True
