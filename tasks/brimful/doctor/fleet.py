"""Checks of the fleet: the limits in force in Redis, workers, and the queues that they read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import redis

from brimful.addresses import FleetAddress
from brimful.config import Settings
from brimful.doctor import Check, Level
from brimful.doctor.rabbitmq import reader_checks
from brimful.errors import UsageError
from brimful.limits import REBUILDING, learnt_lines, set_by_hand
from brimful.names import QUEUES, is_front_door, plain_queue
from brimful.state.broker_queues import read_queues
from brimful.state.dead_letters import read
from brimful.state.fleets import FleetState, fleets_elsewhere, read_fleets, why_refused
from brimful.state.keys import DEAD_LETTERS
from brimful.state.probes import worker_queues
from brimful.state.provider_health import ProviderState
from brimful.state.status import Status, read_status, tags_in_use
from brimful.state.target import RedisTarget, find_tag, own_tag, submitter_tag
from brimful.words.counted import counted

_PING_S = 1.0


def limit_checks(target: RedisTarget, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    """Compare the limits in force with those of this process's profile. Raises redis.RedisError."""
    yield from _key_checks(target, client, settings)
    try:
        status = read_status(client, find_tag(target, client, settings))
    except UsageError as error:
        yield Check("limits", Level.NOTE, str(error))
        return
    profile = settings.profile
    own = f"{counted(profile.slots, 'slot')}, {_starts(profile.starts, profile.window_s)}"
    if status.epoch is None or status.slots is None:
        yield Check(
            "limits", Level.NOTE, f"no worker has used this key here yet; the limits of {profile.name} are {own}"
        )
        return
    in_force = f"{counted(status.slots or 0, 'slot')}, {_starts(status.starts, status.window_s)}"
    if status.overridden:
        by_hand = ", ".join(set_by_hand(status.limits, status.overridden))
        yield Check("limits", Level.OK, f"{in_force}; set by hand: {by_hand}")
    elif status.limits.get("slots_auto") and status.starts == profile.starts:
        yield Check("limits", Level.OK, f"{in_force}; the slots are learnt as they are used")
    elif (status.slots, status.starts) == (profile.slots, profile.starts):
        yield Check("limits", Level.OK, in_force)
    else:
        yield Check(
            "limits",
            Level.WARN,
            f"{in_force}; the settings of this process say {own}",
            "the fleet obeys those in Redis; `brimful limits set` changes them for all workers",
        )
    yield from _admission_checks(status)


def _key_checks(target: RedisTarget, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    tags = tags_in_use(client, settings.fleet)
    if len(tags) > 1:
        said = f"workers with {len(tags)} different API keys run here ({', '.join(tags)}) and read the same queues"
        todo = "stop the workers of all keys but one, or give each key a fleet (BRIMFUL_FLEET) or a database"
        yield Check("keys", Level.FAIL, f"{said}: any of them samples a request", todo)
    elif (own := own_tag(settings)) is not None and (why := why_refused(client, _address(target, settings), own)):
        said, _, todo = why.partition(". ")
        yield Check("keys", Level.FAIL if submitter_tag(settings) else Level.WARN, said, todo)


def _admission_checks(status: Status) -> Iterator[Check]:
    health = status.provider
    if health is not None and health.state in (ProviderState.KEY_REFUSED, ProviderState.QUOTA):
        todo = "replace the key" if health.state == ProviderState.KEY_REFUSED else "raise the quota, or wait for it"
        said = f"the last answer to the fleet was {health.state.replace('_', ' ')}: {health.message}"
        yield Check("provider's answers", Level.FAIL, said, todo)
    versions = sorted({worker.version for worker in status.workers})
    if len(versions) > 1:
        said = f"workers of {len(versions)} versions of brimful run: {', '.join(versions)}"
        yield Check("worker versions", Level.WARN, said, "finish the update: restart the older workers")
    elif versions:
        yield Check("worker versions", Level.OK, versions[0])
    if (late := status.late_answers()) is not None:
        cause, cost = late
        said, _, todo = cost.rpartition("; ")
        yield Check(cause, Level.WARN, said, todo)
    if status.rebuilding:
        yield Check("admission", Level.WARN, REBUILDING)
    for line in learnt_lines(status.learnt, status.limits):
        yield Check(
            "limits",
            Level.WARN,
            line,
            "set what the provider allows: `brimful limits set`, or BRIMFUL_SLOTS and BRIMFUL_STARTS",
        )
    if status.pause_s > 0:
        yield Check(
            "admission",
            Level.WARN,
            f"paused for another {status.pause_s:.0f} s: {status.pause_reason or 'no reason was given'}",
            "nothing: it continues by itself",
        )
    if status.circuit_breaker != "closed":
        yield Check(
            "circuit breaker",
            Level.WARN,
            f"{status.circuit_breaker} after {counted(status.failures, 'failure')} in a row",
            "the provider is failing or refuses this kind of request; brimful probes with one request at a time",
        )


def fleet_checks(target: RedisTarget, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    """All fleets on the server. Raises redis.RedisError; BrokerUnreachable where RabbitMQ is away."""
    lines = [_described(fleet) for fleet in read_fleets(client, _address(target, settings))]
    for db, others in sorted(fleets_elsewhere(client, target.url).items()):
        lines += [f"database {db}: {_described(fleet)}" for fleet in others]
    if lines:
        yield Check("fleets", Level.OK, "; ".join(lines))


def _address(target: RedisTarget, settings: Settings) -> FleetAddress:
    return FleetAddress(target.url, settings.fleet, settings.broker_url)


def _described(fleet: FleetState) -> str:
    owner = fleet.owner
    whose = f"key {owner.tag}{', a rehearsal' if owner.rehearsal else ''}" if owner else "no key registered"
    tags = {member.tag for member in fleet.members} - {owner.tag if owner else None}
    others = f", and workers of {', '.join(sorted(tags))}" if tags else ""
    doors = sum(is_front_door(member.name) for member in fleet.members)
    live = counted(len(fleet.members) - doors, "live worker") + (f", {counted(doors, 'front door')}" if doors else "")
    return f"{fleet.shown}: {whose}, {live}{others}, {fleet.queued} queued"


def worker_checks(target: RedisTarget, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    """Whether workers answer and read all queues. Raises redis.RedisError or kombu.exceptions.OperationalError;
    BrokerUnreachable where RabbitMQ is away."""
    address = _address(target, settings)
    waiting = read_queues(client, address)
    workers = worker_queues(address, settings.visibility_timeout_s, timeout_s=_PING_S)
    if address.rabbitmq_url is not None:
        yield from reader_checks(address.rabbitmq_url, address.fleet, workers)
    if not workers:
        total = sum(waiting.lengths.values())
        level, said = (
            (Level.FAIL, f"none answers, with {counted(total, 'task')} waiting")
            if total
            else (Level.WARN, "none answers")
        )
        yield Check("workers", level, said, "start one with `brimful worker`, or a whole fleet with `brimful up`")
        return
    names = sorted(workers)
    yield Check("workers", Level.OK, f"{len(names)}: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}")
    read = {plain_queue(queue) for queues in workers.values() for queue in queues}
    if unread := [name for name in QUEUES if name not in read]:
        yield Check(
            "queues",
            Level.FAIL if any(waiting.lengths[name] for name in unread) else Level.WARN,
            f"no worker reads {', '.join(unread)}",
            "start a worker without --queues, or with these among them",
        )
    else:
        lengths = ", ".join(f"{name} {waiting.lengths[name]}" for name in QUEUES)
        yield Check("queues", Level.OK, f"waiting: {lengths}{waiting.delivered(': ')}")


def dead_letter_checks(client: redis.Redis) -> Iterator[Check]:
    """Messages that workers set aside. Raises redis.RedisError."""
    total, letters = read(client, 3)
    if not letters:
        return
    shown = "; ".join(f"{_ago(letter.at)} ago, queue {letter.queue}: {letter.why}" for letter in letters)
    yield Check(
        "dead letters",
        Level.WARN,
        f"{counted(total, 'message')} could not be run; the last: {shown}",
        f"correct what sends them; on this Redis, `redis-cli lrange {DEAD_LETTERS} 0 9` shows their headers, "
        f"`redis-cli del {DEAD_LETTERS}` forgets them",
    )


def _ago(at: float) -> str:
    """The time since ``at`` (Unix seconds) in its largest unit."""
    seconds = max(0.0, time.time() - at)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _starts(starts: int | None, window_s: float) -> str:
    return f"{counted(starts, 'start')} in {window_s:g} s" if starts else "no limit of starts"
