"""Every Redis key and channel name, built here and nowhere else.

All keys of one API key's admission carry the hash tag ``{<key tag>}``, all keys of a run ``{run:<id>}``: each set stays
in one slot of a Redis Cluster, and several API keys can share one Redis.
"""

from __future__ import annotations

TAGS = "brimful:tags"
"""ZSET: key tag → when a process of it last started (seconds, Unix)."""


def admission_key(tag: str, name: str) -> str:
    """``name`` is one of :data:`ADMISSION`."""
    return f"brimful:{{{tag}}}:{name}"


ADMISSION = (
    "state",
    "limits",
    "defaults",
    "slots",
    "starts",
    "tokens",
    "amounts",
    "start_only",
    "interactive",
    "batch",
    "heard",
    "commands",
    "pushed",
    "inbox",
    "workers",
)
"""The admission's keys, in the order in which its scripts take them.

state        HASH  epoch, server, clock, pause, ramp, breaker
limits       HASH  the operator's limits, which beat the defaults
defaults     HASH  the limits that the first process brought
slots        ZSET  ticket → expiry of its lease (ms); ``~ticket`` while the slot cools off
starts       ZSET  ticket → when it was granted (ms), the log of the window
tokens       ZSET  ticket → when it was granted (ms), the log of the token window
amounts      HASH  ticket → tokens of that log
start_only   ZSET  ticket that waits for a start without a slot → since when (ms)
interactive  ZSET  waiting ticket → since when (ms)
batch        ZSET  the same
heard        ZSET  process → when it last spoke (ms)
commands     HASH  process → number of its last command; "process seen" → number of the last grant it confirmed
pushed       HASH  process → number of its last grant
inbox        HASH  process → JSON of the grants it has not confirmed
workers      HASH  process → JSON: name, host, pid; and how many wait there beyond those in the queues
"""


def admission_keys(tag: str) -> dict[str, str]:
    return {name: admission_key(tag, name) for name in ADMISSION}


def everyone_channel(tag: str) -> str:
    """All processes of a key listen here: a new epoch, changed limits."""
    return admission_key(tag, "everyone")


def process_channel(tag: str, process: str) -> str:
    """One process listens here: its grants, and when to come again."""
    return admission_key(tag, "to:") + process


def run_key(run: str, name: str) -> str:
    """``shards``, ``results``, ``shard:<id>``, ``claim:<id>``, …"""
    return f"brimful:{{run:{run}}}:{name}"
