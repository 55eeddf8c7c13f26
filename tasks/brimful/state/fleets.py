"""Fleets: the workers of one API key on one Redis. Which key's a fleet is, and who may use it.

A worker registers the tag of its key under its fleet's name. A worker or a submitter with another key is refused, so
that no key's account pays for another's work. Workers of versions before fleets register nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import redis
import redis.asyncio as redis_async

from brimful.addresses import FleetAddress
from brimful.config import Settings
from brimful.errors import FleetTaken, RedisUnreachable, SettingError
from brimful.limits import lease_of
from brimful.names import describe_fleet
from brimful.runtime.port import in_process
from brimful.state.broker_queues import read_queues
from brimful.state.keys import BROKERS, FLEETS, admission_keys
from brimful.state.probes import connect
from brimful.state.redis_url import address_of, sync_redis_client, without_password
from brimful.state.status import IN_USE_S, UNREGISTERED, known_tags, read_status, tag_in_use
from brimful.state.target import submitter_tag
from brimful.words.counted import counted


class Unsettled(FleetTaken):
    """Live workers of another key are not registered, but will be."""


_NAMES = 6
_REHEARSAL, _REPLACED = "rehearsal", "replaced="


class Registration(NamedTuple):
    """Whose a fleet is."""

    tag: str
    rehearsal: bool = False
    replaced: str = ""
    """The tag of the key that this one replaced in its file: workers that have not read the file again have that."""

    @classmethod
    def parse(cls, value: Any) -> Registration | None:
        tag, *more = str(value or "").split(" ")
        replaced = next((word.removeprefix(_REPLACED) for word in more if word.startswith(_REPLACED)), "")
        return cls(tag, _REHEARSAL in more, replaced) if tag else None

    def __str__(self) -> str:
        words = (self.tag, self.rehearsal and _REHEARSAL, self.replaced and f"{_REPLACED}{self.replaced}")
        return " ".join(word for word in words if word)

    def admits(self, tag: str) -> bool:
        return tag in (self.tag, self.replaced)


class Member(NamedTuple):
    """A live worker."""

    tag: str
    name: str
    registers: bool
    """False: a version before fleets."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """A fleet as Redis holds it."""

    name: str
    owner: Registration | None
    members: tuple[Member, ...]
    """Its live workers, of any key."""
    queued: int
    """Task messages, delivered ones included."""

    @property
    def shown(self) -> str:
        return describe_fleet(self.name)

    def others(self, tag: str) -> list[Member]:
        return [member for member in self.members if member.tag != tag]


def read_fleet(client: redis.Redis, address: FleetAddress) -> FleetState:
    """Raises redis.RedisError; BrokerUnreachable where RabbitMQ is the broker."""
    name = address.fleet
    owner = Registration.parse(client.hget(FLEETS, name))
    return FleetState(name, owner, _members(client, name), read_queues(client, address).total)


def read_fleets(client: redis.Redis, address: FleetAddress) -> list[FleetState]:
    """All fleets on the servers of ``address``: the registered ones, and the unnamed one where it has workers or tasks.

    Raises as :func:`read_fleet`.
    """
    names: Any = client.hkeys(FLEETS)
    unnamed, *named = (read_fleet(client, replace(address, fleet=name)) for name in sorted({"", *names}))
    used = "" in names or unnamed.members or unnamed.queued
    return [unnamed, *named] if used else named


def fleets_elsewhere(client: redis.Redis, url: str) -> dict[int, list[FleetState]]:
    """The fleets in the server's other databases. Empty where this user may not look there. Raises redis.RedisError."""
    found = {}
    try:
        databases = [int(name.removeprefix("db")) for name in client.info("keyspace")]
        with sync_redis_client(url, single_connection_client=True) as other:
            here = other.connection_pool.connection_kwargs.get("db") or 0
            for db in databases:
                if db != here:
                    other.execute_command("SELECT", db)
                    if fleets := [
                        fleet for fleet in read_fleets(other, FleetAddress(url)) if fleet.owner or fleet.members
                    ]:
                        found[db] = fleets
    except redis.ResponseError:
        pass
    return found


def fleet_of(client: redis.Redis, tag: str, preferred: str) -> str:
    """The name of a fleet that is the key's: ``preferred``, where that is one, or where none is registered."""
    registered: Any = client.hgetall(FLEETS)
    owners = {name: Registration.parse(value) for name, value in registered.items()}
    names = sorted(name for name, owner in owners.items() if owner is not None and owner.tag == tag)
    return preferred if preferred in names or not names else names[0]


def registered_tags(client: redis.Redis) -> set[str]:
    """The tags of the keys that fleets have."""
    registered: Any = client.hvals(FLEETS)
    return {owner.tag for owner in map(Registration.parse, registered) if owner is not None}


def register(
    client: redis.Redis,
    address: FleetAddress,
    tag: str,
    *,
    rehearsal: bool = False,
    take_over: bool = False,
    patient: bool = False,
) -> None:
    """Make a worker with the key ``tag`` a member of the fleet.

    The fleet is taken over from another key whose workers are gone and that left nothing queued; with ``take_over``
    whatever it left. ``patient``: live workers of another key may register first, as they do again when Redis has lost
    its memory. Raises FleetTaken, Unsettled if patience is needed, and redis.RedisError; BrokerUnreachable where
    RabbitMQ is away.
    """
    url, name = address.redis_url, address.fleet

    def decide(pipe: Any) -> None:
        owner = Registration.parse(pipe.hget(FLEETS, name))
        if owner is not None and (owner.tag == tag if take_over else owner.admits(tag)):
            pipe.multi()
            return
        if not take_over:
            state = read_fleet(client, address)
            others = state.others(tag)
            if any(not member.registers for member in others):
                raise FleetTaken(_refusal(state, url, tag))
            if owner is None and others and patient:
                raise Unsettled(_refusal(state, url, tag))
            if owner is not None and (others or state.queued):
                raise FleetTaken(_refusal(state, url, tag))
        pipe.multi()
        pipe.hset(FLEETS, name, str(Registration(tag, rehearsal)))

    client.transaction(decide, FLEETS)


def take_fleet_over(settings: Settings) -> None:
    """Make the fleet this process's key's. Raises SettingError, RedisUnreachable and redis.RedisError."""
    address = address_of(settings)
    with connect(address.redis_url) as client:
        register(client, address, settings.key_tag, take_over=True)


def register_replaced(client: redis.Redis, name: str, tag: str, replaced: str) -> None:
    """A worker has found the key ``tag`` in the file where ``replaced`` was before. Raises redis.RedisError."""

    def decide(pipe: Any) -> None:
        owner = Registration.parse(pipe.hget(FLEETS, name))
        pipe.multi()
        if owner is None or owner.tag == replaced:
            pipe.hset(FLEETS, name, str(Registration(tag, replaced=replaced)))

    client.transaction(decide, FLEETS)


def check_registered(client: redis.Redis, name: str, tag: str, *, rehearsal: bool) -> bool:
    """Whether the fleet is still the key's. Registers it again where Redis has lost it. Raises redis.RedisError."""
    client.hsetnx(FLEETS, name, str(Registration(tag, rehearsal)))
    owner = Registration.parse(client.hget(FLEETS, name))
    return owner is None or owner.admits(tag)


def check_submitter(settings: Settings) -> None:
    """Raises FleetTaken if the fleet's workers have another key than this process; SettingError if they have another
    broker.

    A process without a key may submit. Does nothing where Redis does not answer: the submission itself reports that.
    """
    tag, url = submitter_tag(settings), settings.redis_url
    if url is None or in_process() is not None:
        return
    try:
        with connect(url) as client:
            why = why_refused(client, address_of(settings), tag) if tag is not None else ""
            broker = client.hget(BROKERS, settings.fleet)
    except (RedisUnreachable, redis.RedisError, OSError):
        return
    if why:
        raise FleetTaken(why)
    if broker == "rabbitmq" and settings.broker_url is None:
        raise SettingError(
            "BRIMFUL_BROKER_URL is not set, but the fleet's workers take their tasks from RabbitMQ: set it"
        )
    if broker == "redis" and settings.broker_url is not None:
        raise SettingError("BRIMFUL_BROKER_URL is set, but the fleet's workers take their tasks from Redis: unset it")


def note_broker(client: redis.Redis, address: FleetAddress, *, if_missing: bool = False) -> None:
    """Store which broker the fleet's workers have; with ``if_missing`` only where Redis has lost its memory. Raises
    redis.RedisError."""
    write = client.hsetnx if if_missing else client.hset
    write(BROKERS, address.fleet, "redis" if address.rabbitmq_url is None else "rabbitmq")


def why_refused(client: redis.Redis, address: FleetAddress, tag: str) -> str:
    """Why a submitter with the key ``tag`` may not use the fleet, and after ``". "`` what to do; "" if it may.

    Raises redis.RedisError.
    """
    owner = Registration.parse(client.hget(FLEETS, address.fleet))
    if owner is not None and (owner.rehearsal or owner.admits(tag)):
        return ""  # a rehearsal is not paid for
    state = read_fleet(client, replace(address, rabbitmq_url=None))  # to submit, RabbitMQ need not answer yet
    tags = {member.tag for member in state.members}
    return _refusal(state, address.redis_url, tag) if owner is not None or (tags and tag not in tags) else ""


def _refusal(state: FleetState, url: str, tag: str) -> str:
    """Why the key ``tag`` may not use the fleet, and what to do."""
    others = state.others(tag)
    owner = state.owner.tag if state.owner else others[0].tag
    whose = f"whose live workers are {_listed(member.name for member in others)}" if others else "with no live worker"
    left = f", with {counted(state.queued, 'task')} queued" if state.queued else ""
    return (
        f"{state.shown} on {without_password(url)} is that of the API key {owner}, {whose}{left}; the key set here is "
        f"{tag}. Give this key's fleet a name, for its workers and submitters alike (BRIMFUL_FLEET=name, in Python "
        'Fleet(fleet="name")), or use another Redis or database (BRIMFUL_REDIS_URL). If this key replaces the other, '
        "start its workers once the other's have ended and its queues are empty, or at once with "
        "`brimful worker --take-over`"
    )


def _members(client: redis.Redis, name: str) -> tuple[Member, ...]:
    found = []
    for tag in known_tags(client):
        status = read_status(client, tag)
        lease_s = lease_of(status.limits)
        for worker in status.workers:
            unregistered = worker.fleet == UNREGISTERED
            if worker.heard_s < lease_s and (worker.fleet == name or (unregistered and not name)):
                found.append(Member(tag, worker.name, not unregistered))
    return tuple(found)


def _listed(names: Iterable[str]) -> str:
    *some, last = [*names][: _NAMES + 1]
    return ", ".join([*some, "…" if len(some) == _NAMES else last])


async def fleet_places(client: redis_async.Redis, fleet: str = "") -> int | None:
    """Tasks that all workers of the fleet run at once; None if that is not known.

    Reads only what describes the workers: a status would read every slot in use as well.
    """
    tag = await tag_in_use(client, fleet)
    if tag is None:
        return None
    keys, pipe = admission_keys(tag), client.pipeline(transaction=True)
    pipe.time()
    pipe.hget(keys["state"], "skew")
    pipe.hgetall(keys["workers"])
    pipe.zrange(keys["heard"], 0, -1, withscores=True)
    (seconds, _), skew, described, heard = await pipe.execute()
    oldest = 1000 * (seconds - IN_USE_S) + int(skew or 0)
    workers = [json.loads(described.get(process, "{}")) for process, at in heard if at > oldest]
    served = [worker.get("places") for worker in workers if worker.get("fleet", UNREGISTERED) == fleet]
    return None if not served or None in served else sum(served)
