"""The script under steps of the clock, lost keys, deaths and newcomers, in simulated time, in any order.

No rule of the script is repeated here. What is checked is the promise alone: what processes hold and have started.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from brimful.state.keys import ADMISSION
from brimful_worker.admission import Limits
from brimful_worker.local.server.valkey import Valkey
from support.admission_peers import Peer, World
from support.chaos import rounds

PEERS_MOST = 4
STEPS_S = (0.6, 1.0, 1.9, 3.0, 3.9, 7.0, 30.0)
"""Steps of less than a quarter of a second go unnoticed: the guard covers them."""


class Machine(RuleBasedStateMachine):
    client: redis.Redis
    tags = itertools.count()

    @initialize(slots=st.integers(1, 4), starts=st.sampled_from([3, 6, 50]))
    def begin(self, slots: int, starts: int) -> None:
        limits = Limits(slots=slots, starts=starts, window_s=5, guard_s=1, lease_s=2, slow_start_s=0, circuit_breaker=0)
        self.world = World(self.client, f"losses{next(self.tags)}", limits.fields())
        self.world.add()
        self.world.add().ask(slots + 1)
        self.world.pass_time(2.1)

    @rule(index=st.integers(0, PEERS_MOST - 1), count=st.integers(1, 6))
    def asks(self, index: int, count: int) -> None:
        self.world.peers[index % len(self.world.peers)].ask(count)
        self.world.converse()

    @rule(index=st.integers(0, PEERS_MOST - 1), count=st.integers(1, 4))
    def ends(self, index: int, count: int) -> None:
        self.world.peers[index % len(self.world.peers)].end(count)
        self.world.converse()

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.5, 1.0, 1.5, 2.1, 4.0, 6.1]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from(STEPS_S), sign=st.sampled_from([1, -1]))
    def clock_steps(self, seconds: float, sign: int) -> None:
        self.world.stepped_s += sign * seconds

    @rule(
        names=st.lists(st.sampled_from(ADMISSION), min_size=1, max_size=3, unique=True),
        share=st.sampled_from([0.0, 0.0, 0.5]),
    )
    def keys_are_lost(self, names: list[str], share: float) -> None:
        for name in names:
            key = self.world.keys[name]
            kind = self.client.type(key)
            if not share or kind == "none":
                self.client.delete(key)
            elif kind == "zset":
                self.client.zremrangebyrank(key, 0, int(self.client.zcard(key) * share))
            else:
                fields = sorted(self.client.hkeys(key))
                self.client.hdel(key, *fields[: max(1, int(len(fields) * share))])

    @rule()
    def memory_is_lost(self) -> None:
        self.client.delete(*self.world.keys.values())

    @rule()
    def server_restarts(self) -> None:
        self.world.server += "'"

    @rule()
    def replica_falls_behind(self) -> None:
        self.replica = self.world.dump()

    @precondition(lambda self: hasattr(self, "replica"))
    @rule()
    def replica_is_promoted(self) -> None:
        self.world.load(self.replica)
        self.world.server += "'"

    @precondition(lambda self: len(self.world.peers) < PEERS_MOST)
    @rule(asks=st.integers(0, 5), stepped=st.sampled_from([0, 0, 0, 1, 1.9, 7, 30, -3]))
    def newcomer(self, asks: int, stepped: float) -> None:
        """It speaks first, before the others notice whatever has happened."""
        self.world.stepped_s += stepped
        peer = self.world.add()
        peer.ask(asks)
        peer.turn()
        self.world.converse()

    @precondition(lambda self: any(not peer.cut for peer in self.world.peers[1:]))
    @rule(index=st.integers(0, PEERS_MOST - 1))
    def dies(self, index: int) -> None:
        self.world.remove(self.mortal(index))

    @precondition(lambda self: any(not peer.cut for peer in self.world.peers[1:]))
    @rule(index=st.integers(0, PEERS_MOST - 1))
    def leaves(self, index: int) -> None:
        peer = self.mortal(index)
        if not peer.held:
            peer.turn(leave=True)
            self.world.remove(peer)
            self.world.converse()

    @rule(index=st.integers(0, PEERS_MOST - 1), connected=st.booleans())
    def is_cut_off(self, index: int, *, connected: bool) -> None:
        self.world.peers[index % len(self.world.peers)].cut_off(connected=connected)

    @rule(index=st.integers(0, PEERS_MOST - 1))
    def comes_back(self, index: int) -> None:
        cut = [peer for peer in self.world.peers if peer.cut]
        if cut:
            cut[index % len(cut)].come_back()
            self.world.converse()

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        if hasattr(self, "world"):
            assert self.world.active <= self.world.limits["slots"]
            assert self.world.most_in_window() <= self.world.limits["starts"]
            assert self.world.taken == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        try:
            for peer in world.peers:
                peer.come_back()
            world.pass_time(2.1)
            for peer in world.peers:
                peer.ask(1)
                peer.end(10)
            known = len(world.started)
            for _ in range(80):
                world.pass_time(0.5)
                self.no_limit_is_exceeded()
                for peer in world.peers:
                    peer.end(10)
            assert len(world.started) >= known + len(world.peers), "work resumes"
        finally:
            for peer in world.peers:
                peer.subscription.close()

    def mortal(self, index: int) -> Peer:
        """One that can speak, but not the first: what no living process has seen, nobody can know."""
        speaking = [peer for peer in self.world.peers[1:] if not peer.cut]
        return speaking[index % len(speaking)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    with Valkey(tmp_path / "valkey") as valkey:
        client = redis.Redis.from_url(valkey.url, decode_responses=True)
        yield client
        client.close()


def test_a_process_is_missing_at_the_moment_of_the_last_reading(server: redis.Redis) -> None:
    """Found by the machine: starts that were read and starts that are assumed, at the same millisecond."""
    limits = Limits(slots=4, starts=6, window_s=5, guard_s=1, lease_s=2, slow_start_s=0)
    world = World(server, "moment", limits.fields())
    idle = world.add()
    busy = world.add()
    busy.ask(5)
    world.pass_time(2.1)
    new = world.add()
    world.converse()
    busy.end(1)
    world.converse()
    server.flushall()
    world.remove(busy)
    idle.urgent = True
    world.converse()
    idle.ask(2)
    world.pass_time(20)
    assert len(world.started) == 5 + 2
    assert world.most_in_window() <= 6
    for peer in (idle, new):
        peer.subscription.close()


def test_a_second_loss_makes_nobody_sure_who_was_there_before_the_first(server: redis.Redis) -> None:
    """The holder is cut off for half a lease. The memory is lost, a newcomer joins, and the server restarts."""
    limits = Limits(slots=4, starts=50, window_s=5, guard_s=1, lease_s=2, slow_start_s=0)
    world = World(server, "twice", limits.fields())
    holder = world.add()
    holder.ask(4)
    world.pass_time(2.1)
    assert world.active == 4
    holder.cut_off(connected=False)
    server.flushall()
    new = world.add()
    new.ask(4)
    world.converse()
    world.server += "'"
    new.urgent = True
    world.pass_time(0.5)
    holder.come_back()
    world.pass_time(0.5)
    assert world.active == 4
    assert not new.held
    holder.subscription.close()
    new.subscription.close()


def cut_off(world: World, *, connected: bool) -> None:
    for peer in world.peers:
        peer.cut_off(connected=connected)


def newcomer_comes_and_goes(world: World) -> None:
    new = world.add()
    new.turn()
    new.turn(leave=True)
    world.remove(new)


def test_a_newcomer_that_finds_no_state_asks_the_others_to_speak(server: redis.Redis) -> None:
    """What they receive names no epoch: there is none."""
    limits = Limits(slots=4, starts=4, window_s=5, guard_s=1, lease_s=2, slow_start_s=0)
    world = World(server, "stateless", limits.fields())
    one = world.add()
    world.pass_time(2.1)
    server.delete(world.keys["state"])
    world.stepped_s += 1
    new = world.add()
    new.ask(1)
    new.turn()
    world.pass_time(0.1)
    assert new.held
    one.subscription.close()
    new.subscription.close()


@pytest.mark.parametrize("unseen", ["by last_seen", "by the new epoch", "by the server"])
def test_a_newcomer_trusts_no_step_while_others_may_be_alive_that_redis_does_not_name(
    server: redis.Redis, unseen: str
) -> None:
    """The others are cut off for half a lease, and the clock steps by many leases and windows."""
    limits = Limits(slots=4, starts=4, window_s=5, guard_s=1, lease_s=2, slow_start_s=0)
    world = World(server, "unseen", limits.fields())
    world.add()
    busy = world.add()
    world.pass_time(2.1)
    busy.ask(4)
    world.converse()
    assert world.active == 4
    cut_off(world, connected=unseen != "by the server")
    if unseen == "by last_seen":
        server.delete(world.keys["heard"])
        world.stepped_s += 30
        newcomer_comes_and_goes(world)
    elif unseen == "by the new epoch":
        server.flushall()
        newcomer_comes_and_goes(world)
    world.stepped_s += 30
    new = world.add()
    new.ask(4)
    new.turn()
    world.pass_time(1.0)
    busy.come_back()
    for _ in range(40):
        world.pass_time(0.25)
        assert world.active <= 4
        busy.end(4)
        new.end(4)
    assert len(world.started) == 8
    assert world.most_in_window() == 4
    assert world.taken == []
    for peer in world.peers:
        peer.subscription.close()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_whatever_is_lost_no_limit_is_exceeded(server: redis.Redis) -> None:
    """``SEED`` in the environment chooses other sequences."""

    class Bound(Machine):
        client = server

    chosen = int(os.environ.get("SEED", "0"))
    run_state_machine_as_test(
        seed(chosen)(Bound),
        settings=settings(
            max_examples=rounds(25, 2000),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
