"""The one catalogue of metrics: every name, description and unit that a worker exposes to Prometheus.

Nothing is counted until :func:`serve` is called (``BRIMFUL_METRICS_PORT``); until then every call below is one ``if``.
Every series has the label ``key``, the API key's fingerprint, so that fleets of several keys do not add up.

Labels come from fixed sets (workloads, causes, modes, task names), never from prompts or ids. The first models and
callers have series of their own, and all others share one (:class:`.kinds.BoundedLabel`).
Fleet-wide gauges (``brimful_slots_used`` …) are the same in every worker that reports them: take ``max by (key)``,
not a sum.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from brimful.errors import SettingError
from brimful.names import TASK_SAMPLE, TASK_SHARD, Mode, Workload
from brimful.outcome import Cause
from brimful.state.provider_health import ProviderState
from brimful_worker.metrics.kinds import Counter, Gauge, Histogram, Metric
from brimful_worker.metrics.server import listen

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from brimful.state.status import Status

_PORTS = 64
"""Ports that are tried, from the one set: workers of one machine take neighbouring ones."""
_WIRE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_WAIT_S = (0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_MODES = tuple(Mode)
_RESULTS = ("ok", *Cause)
_ENDPOINTS = ("completions", "chat", "other")

_BEAT_S = 1.0
_STUCK_S = 30.0

_servers: list[WSGIServer] = []
_beat: float | None = None
_epoch: str | None = None


# the sampler: requests and attempts
REQUESTS = Counter(
    "brimful_requests_total",
    "Requests that ended; result is ok or the failure's cause.",
    "requests",
    ("mode", "result"),
    values=(_MODES, _RESULTS),
)
ATTEMPTS = Counter(
    "brimful_attempts_total",
    "Attempts that reached the wire and ended; result is ok or the cause (rate_limited, timeout, …).",
    "attempts",
    ("mode", "result"),
    values=(_MODES, _RESULTS),
)
ROLLOUTS = Counter("brimful_rollouts_total", "Sampled continuations.", "rollouts")
TOKENS = Counter(
    "brimful_tokens_total",
    "Tokens by the provider's usage; kind is prompt or completion.",
    "tokens",
    ("kind",),
    values=(("prompt", "completion"),),
)
COST = Counter("brimful_cost_total", "Cost of completions by the profile's prices, in their currency.", "money")
MODEL_TOKENS = Counter(
    "brimful_model_tokens_total",
    "Tokens of brimful_tokens_total by the model that was asked for.",
    "tokens",
    ("model", "kind"),
)
MODEL_COST = Counter(
    "brimful_model_cost_total", "Cost of brimful_cost_total by the model that was asked for.", "money", ("model",)
)
ATTEMPT_SECONDS = Histogram(
    "brimful_attempt_seconds", "One attempt, from the wire to the last byte.", "seconds", ("mode",), buckets=_WIRE_S
)
BACKOFF_SECONDS = Counter("brimful_backoff_seconds_total", "Time spent backing off between attempts.", "seconds")

# admission in this process
STARTS = Counter("brimful_starts_total", "Starts put on the wire.", "starts", ("workload",), values=(tuple(Workload),))
WAIT_SECONDS = Histogram(
    "brimful_wait_seconds", "From asking for a slot to its grant.", "seconds", ("workload",), buckets=_WAIT_S
)
HELD = Gauge("brimful_held_slots", "Slots held by this process.", "slots")
STALE_GRANTS = Counter(
    "brimful_stale_grants_total", "Grants given back because the request was not sent within the guard.", "grants"
)
LEASES_LOST = Counter("brimful_leases_lost_total", "Leases that could not be renewed; their requests ended.", "leases")
REDIS_UP = Gauge("brimful_redis_up", "1 while this process reads admission's status from Redis.", "boolean")

# admission, fleet-wide (max by key, not sum)
SLOTS_LIMIT = Gauge("brimful_slots_limit", "Slots the key has.", "slots")
SLOTS_USED = Gauge("brimful_slots_used", "Slots leased in the whole fleet.", "slots")
SLOTS_EFFECTIVE = Gauge("brimful_slots_effective", "Slots in use at most: those set, or fewer if learnt so.", "slots")
STARTS_EFFECTIVE = Gauge(
    "brimful_window_starts_effective",
    "Starts in a window at most: those set, or fewer if learnt so; 0 = no limit.",
    "starts",
)
STARTS_LIMIT = Gauge("brimful_window_starts_limit", "Starts allowed in a window; 0 = no such limit.", "starts")
STARTS_USED = Gauge("brimful_window_starts_used", "Starts in the last window in the whole fleet.", "starts")
WAITING = Gauge(
    "brimful_waiting_requests", "Requests of the whole fleet that wait for a grant.", "requests", ("workload",)
)
PAUSED = Gauge("brimful_pause_seconds", "Time left of the fleet-wide pause.", "seconds")
PROVIDER_STATE = Gauge(
    "brimful_provider_state", "1 for the state of the provider's last answer to the fleet.", "boolean", ("state",)
)
BREAKER_OPEN = Gauge("brimful_breaker_open", "1 while the circuit breaker holds back new starts.", "boolean")
REBUILDING = Gauge("brimful_rebuilding", "1 while admission is rebuilt after Redis restarted or forgot.", "boolean")
BUDGET = Gauge(
    "brimful_budget_tokens", "Tokens that the fleet may spend (limits set --budget); 0 = no such limit.", "tokens"
)
BUDGET_LEFT = Gauge("brimful_budget_left_tokens", "Tokens of that budget that are not spent.", "tokens")
REBUILDS = Counter("brimful_rebuilds_total", "Rebuilds of admission after Redis restarted or forgot.", "rebuilds")

# the pool
TASKS = Counter(
    "brimful_tasks_total",
    "Celery tasks that ended in this pool, by state.",
    "tasks",
    ("task", "state"),
    values=((TASK_SAMPLE, TASK_SHARD), ("succeeded", "failed", "ended", "given back")),
)
TASKS_RUNNING = Gauge("brimful_tasks_running", "Celery tasks that run in this pool.", "tasks", ("task",))
LOOP_LAG_SECONDS = Histogram(
    "brimful_loop_lag_seconds", "How late the event loop ran a timer.", "seconds", buckets=_LAG_S
)
RENEWALS_FAILED = Counter(
    "brimful_message_renewals_failed_total", "Rounds in which task messages could not be renewed in Redis.", "rounds"
)
DEAD_LETTERS = Counter(
    "brimful_dead_letters_total", "Messages that this worker set aside, since no worker could run them.", "messages"
)
MEMORY_EXCEEDED = Counter("brimful_memory_exceeded_total", "Workers ended by BRIMFUL_WORKER_MAX_MEMORY.", "ends")

# the front door
SERVED = Counter(
    "brimful_served_requests_total",
    "HTTP requests that the front door has answered; status is 2xx, 4xx, 5xx, or 499 for a caller that went away.",
    "requests",
    ("endpoint", "status"),
    values=(_ENDPOINTS, ("2xx", "4xx", "5xx", "499")),
)
SERVED_SECONDS = Histogram(
    "brimful_served_seconds",
    "One HTTP request to the front door, from its headers to the last byte of its answer.",
    "seconds",
    ("endpoint",),
    buckets=_WIRE_S,
    values=(_ENDPOINTS,),
)
CALLER_REQUESTS = Counter(
    "brimful_caller_requests_total",
    "Requests sampled, or begun, for a caller of the front door.",
    "requests",
    ("caller",),
)
CALLER_TOKENS = Counter(
    "brimful_caller_tokens_total", "Tokens used by a caller of the front door.", "tokens", ("caller",)
)
CALLER_COST = Counter(
    "brimful_caller_cost_total",
    "Cost of a caller's requests by the profile's prices, without its batches.",
    "money",
    ("caller",),
)
CALLER_BUDGET = Gauge(
    "brimful_caller_budget_tokens", "Tokens that a caller may use; no series without a budget.", "tokens", ("caller",)
)
CALLER_BUDGET_LEFT = Gauge(
    "brimful_caller_budget_left_tokens",
    "Tokens of a caller's budget that are neither used nor held by its requests and batches.",
    "tokens",
    ("caller",),
)
CALLER_WAITED_SECONDS = Counter(
    "brimful_caller_waited_seconds_total",
    "Time that a caller's requests have waited for slots and starts.",
    "seconds",
    ("caller",),
)
SERVING = Gauge("brimful_serving_requests", "HTTP requests under way in the front door.", "requests")

CATALOGUE: tuple[Metric, ...] = tuple(entry for entry in list(globals().values()) if isinstance(entry, Metric))
"""In the order above."""


def fleet_status(status: Status, name: str = "") -> None:
    """Set the gauges from admission's status, read every few seconds. ``name`` is this worker's in it."""
    global _epoch
    REDIS_UP.set(1)
    HELD.set(sum(worker.held for worker in status.workers if worker.name == name))
    SLOTS_USED.set(status.slots_used)
    SLOTS_LIMIT.set(status.slots or 0)
    effective = {"slots": status.slots, "starts": status.starts} | {n: k.limit for n, k in status.learnt.items()}
    SLOTS_EFFECTIVE.set(effective["slots"] or 0)
    STARTS_EFFECTIVE.set(effective["starts"] or 0)
    STARTS_USED.set(status.starts_used)
    STARTS_LIMIT.set(status.starts or 0)
    for workload, waiting in status.waiting.items():
        WAITING.set(waiting, workload)
    PAUSED.set(status.pause_s)
    BUDGET.set(status.budget or 0)
    BUDGET_LEFT.set(max(0, (status.budget or 0) - status.budget_spent))
    for state in ProviderState:
        PROVIDER_STATE.set(float(status.provider is not None and status.provider.state == state), state)
    BREAKER_OPEN.set(float(status.circuit_breaker != "closed"))
    REBUILDING.set(float(status.rebuilding))
    REBUILDS.inc(by=float(None not in (_epoch, status.epoch) and _epoch != status.epoch))
    _epoch = status.epoch or _epoch


def rekey(key_tag: str) -> None:
    """The API key was replaced."""
    global _epoch
    _epoch = None
    for metric in CATALOGUE:
        metric.rekey(key_tag)


def redis_away() -> None:
    """The status could not be read. The other gauges keep what was last known."""
    REDIS_UP.set(0)


def serving() -> bool:
    """Whether anything is counted. Guards work that is only done to be counted."""
    return STARTS._series is not None


async def heartbeat() -> None:
    """Beat for ``/healthz`` and measure the event loop's lag. Runs until cancelled, one task per process."""
    global _beat
    while True:
        due = _beat = time.monotonic()
        await asyncio.sleep(_BEAT_S)
        LOOP_LAG_SECONDS.observe(max(0.0, time.monotonic() - due - _BEAT_S))


def health(clock: Callable[[], float] = time.monotonic) -> str:
    """Why this worker is unhealthy; empty when it is healthy.

    Redis being away is no reason: a worker outlives that, and restarting it would lose what it has in flight.
    """
    if _beat is None:
        return "starting: the event loop has not run yet"
    silent = clock() - _beat
    return f"the event loop has been stuck for {silent:.0f} s" if silent > _STUCK_S else ""


def serve(port: int, *, key_tag: str, address: str = "127.0.0.1", token: str | None = None) -> int:
    """Count from now on, and answer ``GET /metrics`` and ``GET /healthz`` on daemon threads. Returns the port.

    ``port`` 0 takes a free one. If the port is taken, by another worker of this machine, the next free one above it is
    used. Raises SettingError when none of 64 is free, or the address is not this machine's.
    """
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    for candidate in [port] if port == 0 else range(port, min(port + _PORTS, 65536)):
        try:
            server = listen(candidate, address, registry, health, token)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise SettingError(
                f"BRIMFUL_METRICS_PORT: cannot listen on {address}:{candidate}: {error.strerror}"
            ) from None
        for metric in CATALOGUE:
            metric.open(registry, key_tag)
        _servers.append(server)
        return int(server.server_port)
    raise SettingError(f"BRIMFUL_METRICS_PORT: none of the {_PORTS} ports from {port} on is free on {address}")


def stop() -> None:
    """Undo :func:`serve`, as often as it was called, and forget what was counted. A worker serves until it exits."""
    global _beat, _epoch
    _beat = _epoch = None
    for metric in CATALOGUE:
        metric.close()
    while _servers:
        server = _servers.pop()
        server.shutdown()
        server.server_close()
