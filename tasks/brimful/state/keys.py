"""Every Redis key and channel name of brimful; Celery's are in :mod:`brimful.state.broker_queues`.

The keys of one API key's admission carry the hash tag ``{<key tag>}``, those of a run ``{run:<id>}``: each set stays in
one slot of a Redis Cluster, and several API keys can share one Redis.
"""

from __future__ import annotations

from brimful.names import of_fleet

TAGS = "brimful:tags"
"""ZSET: key tag → when a process of it last started (seconds, Unix)."""
FLEETS = "brimful:fleets"
"""HASH: a fleet's name, "" for the unnamed one → the tag of its key; behind it, after spaces, ``rehearsal`` for a
generated key, and ``replaced=<tag>`` after a change of the key's file."""

RUNS = "brimful:runs"
"""ZSET: run, with its fleet's name → when its submitter last wrote its entry (seconds, Unix)."""
BROKERS = "brimful:brokers"
"""HASH: a fleet's name → ``rabbitmq`` or ``redis``, the broker of the worker that came last."""

DEAD_LETTERS = "brimful:dead_letters"
"""LIST: JSON of messages that no worker could run, the newest first; bounded. They belong to a queue, not to a key."""


def weights_key(fleet: str) -> str:
    """ZSET: ``<weight> <run>`` of the runs and maps under way → when it was last stated (seconds, Unix)."""
    return f"brimful:{of_fleet(fleet, 'weights')}"


ADMISSION = (
    "state",  # HASH: epoch, server, clock, sizes of the other keys, pause, slow start, circuit breaker
    "limits",  # HASH: the operator's limits, which override the defaults
    "defaults",  # HASH: the limits that the first process brought
    "slots",  # ZSET: ticket → expiry of its lease (ms); ``~ticket`` while the slot cools down
    "starts",  # ZSET: ticket → when it was granted (ms); the log of the window
    "tokens",  # ZSET: ticket → when it was granted (ms); the log of the token window
    "amounts",  # HASH: ticket → tokens of that log
    "start_only",  # ZSET: ticket that waits for a start without a slot → since when (ms), + 1e15 if its process is away
    "interactive",  # ZSET: waiting ticket → since when (ms)
    "batch",  # ZSET: the same
    "heard",  # ZSET: process → time of its last command (ms)
    "commands",  # HASH: process → number of its last command; "process seen" → the last grant it confirmed,
    # "process asked", "process since", "process members"
    "pushed",  # HASH: process → number of its last grant
    "inbox",  # HASH: process → JSON of the grants that it has not confirmed
    "workers",  # HASH: process → JSON: name, host, pid, and how many wait beyond those in the queues
    "on_wire",  # HASH: name of a request → ticket it was granted last ("-": ended), when (ms), deaths of its processes
)
"""The admission's keys, in the order in which its scripts take them."""


def admission_keys(tag: str) -> dict[str, str]:
    """:data:`ADMISSION` → key."""
    return {name: f"brimful:{{{tag}}}:{name}" for name in ADMISSION}


def provider_key(tag: str) -> str:
    """STRING: JSON of what the workers publish of their provider."""
    return f"brimful:{{{tag}}}:provider"


def health_key(tag: str) -> str:
    """HASH: how the provider answered last (:mod:`brimful.state.provider_health`)."""
    return f"brimful:{{{tag}}}:health"


def everyone_channel(tag: str) -> str:
    """Channel of all of a key's processes: a new epoch, changed limits."""
    return f"brimful:{{{tag}}}:everyone"


def process_channel(tag: str, process: str) -> str:
    """Channel of one process: its grants, and when to poll again."""
    return f"brimful:{{{tag}}}:to:{process}"


def run_key(run: str, name: str) -> str:
    """``shards``, ``results``, ``shard:<id>``, ``claim:<id>``, …"""
    return f"brimful:{{run:{run}}}:{name}"


def entry_key(run: str) -> str:
    """HASH: who submits the run, how far it is, and what ``brimful runs`` asks of it (:mod:`brimful.state.runs`)."""
    return run_key(run, "entry")


def revoked_key(task_id: str, fleet: str = "") -> str:
    """STRING: the Celery task was revoked."""
    return f"brimful:{{task:{of_fleet(fleet, task_id)}}}:revoked"


def claim_key(identity: str, fleet: str = "") -> str:
    """STRING: who samples a single request now; for an idempotency key, whose result is the answer.

    ``identity``: the task's id, or a digest of its idempotency key.
    """
    return f"brimful:{{task:{of_fleet(fleet, identity)}}}:claim"


def answer_key(identity: str, fleet: str = "") -> str:
    """STRING: who samples a front door's request with an ``Idempotency-Key`` now, or its answer.

    ``identity``: a digest of the caller and the key.
    """
    return f"brimful:{{answer:{of_fleet(fleet, identity)}}}"


def callers_key(fleet: str) -> str:
    """HASH: caller of the front door → JSON of its token's digest; "" → how often this has changed.

    It is the fleet's, not the API key's: callers keep their tokens when the key is replaced.
    """
    return f"brimful:{{{of_fleet(fleet, 'callers')}}}"


def callers_usage_key(fleet: str) -> str:
    """HASH: ``<kind> <caller>`` → what the caller has used of it since its token was made."""
    return f"{callers_key(fleet)}:usage"


def caller_shares_key(fleet: str, workload: str) -> str:
    """HASH: what waits at each front door, and what each caller has got for its weight (shares.lua)."""
    return f"{callers_key(fleet)}:shares:{workload}"


def caller_batches_key(fleet: str) -> str:
    """HASH: ``<caller> <batch>`` → ``<tokens> <until>``: budget held back for a batch under way, and until when (s)."""
    return f"{callers_key(fleet)}:batches"


def charged_key(fleet: str, batch: str) -> str:
    """STRING: what this batch has used is in its caller's counts, also for a front door that finishes it once more."""
    return f"{callers_key(fleet)}:charged:{batch}"


def callers_clock_key(fleet: str) -> str:
    """HASH: the clock of the callers' limits: ``last`` → what it showed, ``skew`` → its difference to TIME (ms)."""
    return f"{callers_key(fleet)}:clock"


def caller_starts_key(fleet: str, name: str) -> str:
    """ZSET: request of a caller with a limit of requests a minute → when it came (ms)."""
    return f"{callers_key(fleet)}:starts:{name}"


def caller_tokens_keys(fleet: str, name: str) -> tuple[str, str]:
    """Of a caller with a limit of tokens a minute. ZSET: request → when it came (ms); HASH: request → its tokens, "sum"
    → of all."""
    return f"{callers_key(fleet)}:tokens:{name}", f"{callers_key(fleet)}:amounts:{name}"


def caller_slots_keys(fleet: str, name: str) -> tuple[str, str, str]:
    """ZSETs of a caller with a limit of slots: request → end of its lease; waiting request → when it came; front door →
    until when it counts (all ms)."""
    root = callers_key(fleet)
    return f"{root}:slots:{name}", f"{root}:waiting:{name}", f"{root}:doors:{name}"
