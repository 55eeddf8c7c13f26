"""What must hold after a storm. Each finding is a sentence with the id that it is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import redis

from brimful.state.dead_letters import MOST, read
from brimful.state.keys import admission_keys
from brimful.state.rabbitmq.queues import read_states
from support.storm.machines import SLOTS, STARTS, WINDOW_S, Machines
from support.storm.singles import QUEUES, Single

STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")


def limits(machines: Machines) -> Iterator[str]:
    """As the gateway saw them."""
    ledger = machines.gateway.ledger()
    if ledger["peak_active"] > SLOTS:
        yield f"{ledger['peak_active']} requests were active at once, of {SLOTS} slots"
    if ledger["most_in_window"] > STARTS:
        yield f"{ledger['most_in_window']} starts came within {WINDOW_S:g} s, of {STARTS}"
    if ledger["refused"]:
        yield f"the gateway refused {ledger['refused']} requests that were beyond the limits"
    if ledger["active"]:
        yield f"{ledger['active']} requests are active at the gateway in the calm"
    if ledger["keys"] != 1:
        yield f"{ledger['keys']} keys were used"


def queues(machines: Machines) -> Iterator[str]:
    """Nothing waits, and nothing is delivered without an acknowledgement."""
    if machines.rabbitmq is not None:
        for queue, state in read_states(machines.rabbitmq.url).items():
            if state.waiting:
                yield f"{state.waiting} messages wait in RabbitMQ's {queue!r}"
    client = machines.admin
    for queue in QUEUES:
        for step in STEPS:
            if waiting := client.lrange(queue + step, 0, 2):
                yield f"{client.llen(queue + step)} messages wait in {queue + step!r}: {_shown(waiting)}"
    for tag, message in client.hgetall("unacked").items():
        yield f"unacked: {tag!r}: {_shown(message)}"
    if left := client.zcard("unacked_index"):
        yield f"unacked_index: {left} tags: {client.zrange('unacked_index', 0, 3)!r}"


def leases(client: redis.Redis) -> Iterator[str]:
    """No slot is held, and nobody waits for one."""
    for key in client.scan_iter("brimful:{*}:slots"):
        names = admission_keys(key.split("{")[1].split("}")[0])
        for name in ("slots", "interactive", "batch", "start_only"):
            if left := client.zrange(names[name], 0, 3):
                yield f"{name}: {left}"


def singles(sent: list[Single], machines: Machines, calm_at: float) -> Iterator[str]:
    """Each has a result. A request that waited in a queue while Redis was flushed is gone, as documented."""
    for single in sent:
        if not single.accepted or _lost_by_flush(single, machines, calm_at):
            continue
        about = f"single {single.id} ({single.kind}, sent at {single.sent_at:.1f})"
        if not single.state:
            yield f"{about} has no result"
        elif single.state == "REVOKED" and single.kind not in ("revoke", "expires"):
            yield f"{about} was revoked by nobody"
        elif single.state == "FAILURE" and not _expected_failure(single):
            yield f"{about} failed with {single.cause}"
        elif single.kind in ("malformed", "poison") and single.state != "FAILURE":
            yield f"{about} ended as {single.state}"


def lost_by_flush(sent: list[Single], machines: Machines, calm_at: float) -> list[Single]:
    return [single for single in sent if single.accepted and _lost_by_flush(single, machines, calm_at)]


def _lost_by_flush(single: Single, machines: Machines, calm_at: float) -> bool:
    return not single.state and machines.flushed(single.sent_at, calm_at)


def _expected_failure(single: Single) -> bool:
    """A failure that a provider's fault, a poison or a malformed message explains."""
    kind, _, cause = single.cause.partition(" ")
    if single.kind == "malformed":
        return True
    if single.kind == "poison":
        return cause == "worker_lost"
    return kind == "TransientFailure" and cause in ("server_error", "timeout", "connection", "rate_limited")


def dead_letters(client: redis.Redis, malformed: Counter[str], tried: set[str]) -> Iterator[str]:
    """One for each malformed message, at least: a worker that dies after writing one leaves the message to the next.

    Redelivery marks a message, so the letter of one that has no id has another digest then.
    """
    total, letters = read(client, MOST)
    found = Counter(letter.id if letter.id in tried else letter.sha256 for letter in letters)
    others = [letter for letter in letters if letter.id not in tried and letter.sha256 not in tried]
    redelivered = sum("redelivered" in letter.headers for letter in others)
    for name, count in malformed.items():
        missing = count - found[name]
        if missing > redelivered:
            yield f"malformed message {name}: {found[name]} dead letters, of {count}"
        redelivered -= max(0, missing)
    for letter in others:
        if "redelivered" not in letter.headers:
            yield f"a dead letter for {letter.id}, which is no malformed message: {letter.why}"
    if total > MOST:
        yield f"{total} dead letters are kept"


def _shown(value: object) -> str:
    return str(value)[:300]
