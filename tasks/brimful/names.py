"""Names of tasks, queues, workloads and modes. Other programs may rely on the values.

Imports nothing, so that every other module may import it.
"""

from __future__ import annotations

from enum import StrEnum

APP = "brimful"

TASK_SAMPLE = "brimful.sample"
"""One request; its completion is the task's result."""
TASK_SHARD = "brimful.shard"
"""Many requests of one run; each outcome goes to the run's ledger when its request ends."""

IDEMPOTENCY_KEY = "idempotency_key"
"""Field of a single request: requests with the same key are sampled once, and all get the result."""

DEFAULT_QUEUE = "celery"
"""Celery's default queue: where tasks land that another Celery app sends by name. Workers consume it too."""


class Workload(StrEnum):
    """Value of the ``X-Acs-Workload`` header, priority in admission, and name of the queue."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


QUEUES = (Workload.INTERACTIVE.value, DEFAULT_QUEUE, Workload.BATCH.value)
"""In the order in which workers consume them; the names of the unnamed fleet's."""

SENT_AT = "sent_at"
"""Header of a task's message: when it was enqueued, in Unix seconds by the sender's clock. Other senders set none."""

MOST_WEIGHT = 100.0
"""The largest weight of a run; its inverse is the smallest."""

BATCH_VARIABLE, BATCH_CALLER_VARIABLE = "BRIMFUL_BATCH", "BRIMFUL_BATCH_CALLER"
"""Environment variables by which the front door names a batch, and its caller, to the run that samples it. The first is
empty where the run only writes the batch's output."""

NO_BROKER = "redis"
"""BRIMFUL_BROKER_URL where Redis is the broker, although a ``.env`` file names a RabbitMQ."""

FLEET_SETTING = "brimful_fleet"
"""The fleet's name among the settings of our Celery apps."""


FRONT_DOOR = "serve-"
"""How the name of a front door's process begins, before its port."""


def is_front_door(process: str) -> bool:
    """Whether the process of this name in the fleet is a front door."""
    return process.startswith(FRONT_DOOR)


def of_fleet(fleet: str, name: str) -> str:
    """A fleet's own name of a queue, an exchange, a run or a key: ``evals.batch``. ``""`` is the unnamed fleet, whose
    names are the plain ones."""
    return f"{fleet}.{name}" if fleet else name


def fleet_in(name: str) -> str:
    """The fleet's name in what :func:`of_fleet` returned."""
    return name.rpartition(".")[0]


def describe_fleet(fleet: str) -> str:
    """For messages."""
    return f"the fleet {fleet}" if fleet else "the unnamed fleet"


def plain_queue(queue: str) -> str:
    """The queue's name without its fleet's, which contains no dot."""
    return queue.rpartition(".")[2]


class LogLevel(StrEnum):
    """Of a worker's log, in upper or lower case."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"

    @classmethod
    def _missing_(cls, value: object) -> LogLevel | None:
        upper = str(value).upper()
        return cls(upper) if upper in cls.__members__ else None


class LogFormat(StrEnum):
    """Of the logs of workers, front doors and Flower."""

    TEXT = "text"
    JSON = "json"
    """One JSON object a record."""


class Mode(StrEnum):
    """The endpoint of a request."""

    COMPLETION = "completion"
    """``POST /completions``"""
    CHAT = "chat"
    """``POST /chat/completions``"""
    JOB = "job"
    """``POST /completion-jobs``, then poll and fetch"""
