"""Every task, queue and mode name, in one place. Strangers may rely on the values: they are part of the contract."""

from __future__ import annotations

from enum import StrEnum

APP = "brimful"

TASK_SAMPLE = "brimful.sample"
"""One request; its completion is the task's result."""
TASK_SHARD = "brimful.shard"
"""Many requests of one run; each outcome goes to the run's ledger as it ends."""

IDEMPOTENCY_KEY = "idempotency_key"
"""Field of a single request: requests with the same key are sampled once, and all get the result."""

DEFAULT_QUEUE = "celery"
"""Where a service lands that sends ``brimful.sample`` by name from a Celery app of its own without naming a queue.
Workers drain it too."""


class Workload(StrEnum):
    """The provider's ``X-Acs-Workload`` header, our admission class and our queue, under one name."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


QUEUES = (Workload.INTERACTIVE.value, DEFAULT_QUEUE, Workload.BATCH.value)
"""In the order in which workers ask for them."""


class Mode(StrEnum):
    """How a request is sent."""

    COMPLETION = "completion"
    """``POST /completions``"""
    CHAT = "chat"
    """``POST /chat/completions``"""
    JOB = "job"
    """``POST /completion-jobs``, then poll and fetch"""
