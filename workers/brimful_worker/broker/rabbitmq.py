"""What a worker does differently where Redis is not its broker, which in practice means RabbitMQ.

RabbitMQ redelivers what a lost connection had not acknowledged, so nothing is renewed. A worker has a consumer for each
queue; each may have as many unacknowledged messages as the worker's concurrency, and all of them run at once. So no
queue keeps another one waiting, as :mod:`brimful_worker.broker.fairness` ensures with Redis.

Private parts of celery 5.7.0:
    celery.worker.consumer.tasks.Tasks: qos_global
"""

from __future__ import annotations

from celery import Celery
from celery.worker.consumer.tasks import Tasks

from brimful.names import TASK_SAMPLE
from brimful_worker.broker.fairness import fairness


def is_redis(app: Celery) -> bool:
    """Whether Redis is the app's broker."""
    return bool(app.connection_for_read().transport.driver_type == "redis")


def limit_each_queue(app: Celery) -> None:
    """Limit each queue by itself, to the worker's concurrency. For this process; idempotent. Does nothing for an app of
    another service."""
    if TASK_SAMPLE in app.tasks:
        fairness.leave_limits_to_broker()
        Tasks.qos_global = lambda step, consumer: False
