"""Processes of a fleet in simulated time: what they hold and have started, whatever Redis remembers of it.

They speak to the real script on a real server, as ``wire/coordinator.py`` does, with the same clock and bookkeeping.
The server's TIME is part of the example, so that it runs the same way each time and can be shrunk.
"""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from typing import Any

import redis

from brimful.state.keys import admission_keys, everyone_channel, process_channel
from brimful_worker.admission.policy import Rules, wire_lag
from brimful_worker.admission.wire.pending_grants import PendingGrants
from brimful_worker.admission.wire.recent_starts import RecentStarts
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.rpc import exchange, exchange_arguments
from brimful_worker.lua_script import Script

THAW_S = 0.03


@lru_cache
def timed_script() -> str:
    """The script with Redis's TIME as a fourth argument, a JSON array."""
    text = exchange().text
    assert text.count("redis.call('TIME')") == 1
    return text.replace("redis.call('TIME')", "cjson.decode(ARGV[4])")


STEP_KEY, STEP_DB = "limits-storm-step", 1
"""By how many milliseconds a server's clock was stepped. In a database of its own: it is no data of the fleet."""


@lru_cache
def stepped_script() -> Script:
    """The script with Redis's TIME plus the step under STEP_KEY."""
    text = exchange().text
    assert text.count("redis.call('TIME')") == 1
    return Script.of(
        text.replace(
            "redis.call('TIME')",
            f"""(function()
  redis.call('SELECT', {STEP_DB})
  local step = tonumber(redis.call('GET', '{STEP_KEY}') or 0)
  redis.call('SELECT', 0)
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2] + step * 1000
  return {{math.floor(micros / 1000000), micros % 1000000}}
end)()""",
        )
    )


def timed_call(client: redis.Redis, tag: str, message: dict[str, Any], time_ms: int) -> dict[str, Any]:
    """A command carried out at this time of the server's clock."""
    count, *arguments = exchange_arguments(tag, json.dumps(message).encode())
    arguments.append(json.dumps([time_ms // 1000, time_ms % 1000 * 1000]))
    script = client.register_script(timed_script())
    reply: dict[str, Any] = json.loads(script(arguments[:count], arguments[count:]))
    return reply


class World:
    """One server and its fleet. ``now`` is true time, in seconds; Redis's clock is ``stepped_s`` ahead of it."""

    def __init__(self, client: redis.Redis, tag: str, limits: dict[str, int]) -> None:
        self.client, self.tag, self.limits = client, tag, limits
        self.keys = admission_keys(tag)
        self.rules = Rules.from_fields(limits, cooldown_s=0.3)
        self.now, self.stepped_s = 1000.0, 0.0
        self.server = "s1"
        self.peers: list[Peer] = []
        self.started: list[float] = []
        """True times of all starts."""
        self.taken: list[str] = []
        """Leases that Redis gave up while their holders were within them."""
        self._names = itertools.count(0xA0)
        self._marks = itertools.count()

    def add(self) -> Peer:
        """A process that has yet to speak."""
        peer = Peer(self, f"{next(self._names):x}")
        self.peers.append(peer)
        return peer

    def remove(self, peer: Peer) -> None:
        """Its process is killed."""
        self.peers.remove(peer)
        peer.subscription.close()

    def converse(self) -> None:
        """Let each process speak that has a reason to, until none has."""
        for _ in range(200):
            self._deliver()
            peer = next((peer for peer in self.peers if peer.urgent and not peer.cut and peer.thaws <= self.now), None)
            if peer is None:
                return
            peer.turn()
        raise AssertionError("the processes talk without end")

    def pass_time(self, seconds: float) -> None:
        """Each process speaks when it is due. The first is never cut off for as long as a lease."""
        end = self.now + seconds
        while True:
            self.converse()
            due = [(max(peer.due, peer.thaws), i) for i, peer in enumerate(self.peers) if not peer.cut]
            if self.peers[0].cut:
                due.append((self.peers[0].due_back, 0))
            at, i = min(due)
            self.now = max(self.now, min(at, end))
            self.expire()
            if at > end:
                return
            self.peers[i].come_back()

    def expire(self) -> None:
        for peer in self.peers:
            peer.held = {ticket: until for ticket, until in peer.held.items() if until > self.now}

    def dump(self) -> dict[str, bytes]:
        """All that the server remembers of the fleet."""
        dumps: dict[str, Any] = {key: self.client.dump(key) for key in self.keys.values()}
        return {key: dump for key, dump in dumps.items() if dump is not None}

    def load(self, dump: dict[str, bytes]) -> None:
        """The server forgets all that came after the dump."""
        self.client.delete(*self.keys.values())
        for key, value in dump.items():
            self.client.restore(key, 0, value)

    @property
    def active(self) -> int:
        return sum(len(peer.held) for peer in self.peers)

    def most_in_window(self) -> int:
        window = self.rules.window_s
        return max((sum(at <= other < at + window for other in self.started) for at in self.started), default=0)

    def time_ms(self) -> int:
        return round((self.now + self.stepped_s) * 1000)

    def _deliver(self) -> None:
        """Everything that was published so far: a mark behind it shows that all has arrived."""
        mark = f"mark {next(self._marks)}"
        pipe = self.client.pipeline(transaction=False)
        connected = [peer for peer in self.peers if peer.connected]
        for peer in connected:
            pipe.publish(process_channel(self.tag, peer.name), mark)
        pipe.execute()
        for peer in connected:
            while (got := peer.subscription.get_message(timeout=5)) is None or got["data"] != mark:
                assert got is not None, "the subscription is dead"
                if got["type"] == "message" and not got["data"].startswith("mark") and not peer.cut:
                    peer.pushed(json.loads(got["data"]))


class Peer:
    """One process. ``cut``: nothing reaches it or comes from it. ``connected``: its connections are open."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.cut, self.connected, self.urgent = world, name, False, False, True
        self.held: dict[str, float] = {}
        """Ticket → when its lease ends on this process's clock."""
        self.waiting: dict[str, float] = {}
        self.clock = RedisClock()
        self.due = self.due_back = self.thaws = world.now
        self._recent = RecentStarts()
        self._grants = PendingGrants(self._granted)
        self._epoch, self._rev, self._command = "", "", 0
        self._members: tuple[int, list[str]] = 0, []
        self._known: dict[str, Any] = {}
        self._used_at = 0.0
        self._asks: list[str] = []
        self._releases: list[list[Any]] = []
        self._number = itertools.count(1)
        self.subscription = world.client.pubsub()
        self._channels = process_channel(world.tag, name), everyone_channel(world.tag)
        self.come_back()

    def cut_off(self, *, connected: bool = True) -> None:
        """``connected``: the server does not notice it."""
        self.cut = True
        if self.connected and not connected:
            self.subscription.unsubscribe()
            self._confirmed("unsubscribe")
            self.connected = False

    def come_back(self) -> None:
        self.cut, self.urgent = False, True
        if not self.connected:
            self.subscription.subscribe(*self._channels)
            self._confirmed("subscribe")
            self.connected = True

    def _confirmed(self, kind: str) -> None:
        """Wait until the server has carried it out for each channel. What was published before is not received."""
        left = len(self._channels)
        while left:
            got = self.subscription.get_message(timeout=5)
            assert got is not None, f"the server has not confirmed to {kind}"
            left -= got["type"] == kind

    def ask(self, count: int) -> None:
        for _ in range(count):
            ticket = f"{self.name}.b.{next(self._number):06d}.0"
            self.waiting[ticket] = self.world.now
            self._asks.append(ticket)
        self.urgent = True

    def end(self, count: int) -> None:
        """The oldest requests end."""
        for ticket in list(self.held)[:count]:
            del self.held[ticket]
            self._releases.append([ticket, 0, 1, -1, 0])
        self.urgent = True

    def turn(self, *, leave: bool = False) -> None:
        """Speak once, with all that an answer of the script demands."""
        world, self.urgent = self.world, False
        stepped = False
        for _ in range(4):
            message = self._message(leave=leave, stepped=stepped)
            reply = timed_call(world.client, world.tag, message, world.time_ms())
            status = reply["status"]
            if "clock" in reply:
                self.clock.reset()
                self.clock.id = reply["clock"]
            if status == "ok":
                return self._apply(message, reply)
            if status == "frozen":
                self.clock.note_frozen(world.now, world.now, reply)
                self.due = self.thaws = world.now + THAW_S
                return None
            if status == "late":
                assert self.clock.stepped(world.now, reply["now"]), "no time passes between a command and its answer"
                stepped = True
            else:
                assert status == "join", status
                self._epoch = ""
        raise AssertionError("four commands in a row without an answer")

    def pushed(self, push: dict[str, Any]) -> None:
        if "now" not in push:
            if push.get("epoch") == self._epoch and "members" in push and push["members"][0] > self._members[0]:
                self._members = push["members"][0], push["members"][1]
                self.urgent = True
            self.urgent |= push.get("epoch") != self._epoch or "limits" in push
        elif push["epoch"] == self._epoch:
            self._grants.pushed(push.get("grants") or ())
            self.urgent |= self._grants.gap
            if "at" in push:
                self.due = min(self.due, self.world.now + max(0.0, push["at"] - push["now"]) / 1000 + 0.001)

    def _message(self, *, leave: bool, stepped: bool) -> dict[str, Any]:
        world, now = self.world, self.world.now
        self._command += 1
        message: dict[str, Any] = {
            "process": self.name,
            "schema": 1,
            "command": self._command,
            "epoch": self._epoch,
            "server": world.server,
            "new_epoch": f"{self.name}-{self._command}",
            "clock": self.clock.id,
            "stepped": stepped,
            "lease_ms": world.limits["lease_ms"],
            "seen": self._grants.seen,
            "rev": self._rev,
            "members": self._members[0],
            "release": list(self._releases),
            "ask": [[ticket, 0] for ticket in self._asks],
            "leave": leave,
        }
        bound, waited = self.clock.bound_ms(now, stepped=stepped), self.clock.waited(now)
        message |= {"bound_ms": bound, "least_ms": self.clock.least_ms(now)} if bound is not None else {}
        message |= {"waited": waited} if waited is not None else {}
        if self._epoch:
            message["renew"] = list(self.held)
            return message
        self._grants.restart()
        self._recent.trim(now, world.rules.window_s + world.rules.guard_s)
        tickets = [*self.held, *[release[0] for release in self._releases]]
        join: dict[str, Any] = {"defaults": world.limits, "leases": [[ticket] for ticket in tickets]}
        join["starts"] = [[ticket, age] for ticket, age, _ in self._recent.ages(now)]
        if self._known:
            join |= self._known | {"used_age_ms": max(0, int((now - self._used_at) * 1000) - 2)}
            join["members"] = self._members[1]
        message["ask"] = [[ticket, round((now - since) * 1000)] for ticket, since in self.waiting.items()]
        return message | {"join": join}

    def _apply(self, message: dict[str, Any], reply: dict[str, Any]) -> None:
        now, rules = self.world.now, self.world.rules
        if reply["epoch"] != self._epoch:
            self.clock.reset()
            self._epoch = reply["epoch"]
            self._members = 0, self._members[1]
        self.clock.note(now, now, reply["now"])
        self.due_back = now + 0.75 * rules.lease_s
        self._releases, self._asks = [], []
        self._rev = reply["rev"]
        if "alive" in reply:
            self._known = {"alive": reply["alive"], "used": reply["used"]}
            self._used_at = self.clock.not_after(reply["now"])
        if members := reply.get("members"):
            self._members = members[0], members[1]
        if "join" in message:
            self._grants.restart(reply["base"])
        self.held = dict.fromkeys(self.held, now + rules.local_lease_s)
        self.due = now + (rules.heartbeat_s if self.held or self.waiting else rules.idle_s)
        if "at" in reply:
            self.due = min(self.due, now + max(0, reply["at"] - reply["now"]) / 1000 + 0.001)
        self._grants.replied(reply.get("grants") or ())
        self.world.taken += [ticket for ticket in reply.get("lost") or () if ticket in self.held]

    def _granted(self, ticket: str, granted_ms: float, deaths: int = 0) -> None:
        granted, rules = self.clock.not_after(granted_ms), self.world.rules
        known = self.waiting.pop(ticket, None) is not None
        if not known or self.world.now > granted + wire_lag(rules.guard_s):
            self._releases.append([ticket, 0, -1, -1, 1])
            self.urgent = True
            return
        self._recent.add(ticket, granted, 0)
        self.held[ticket] = granted + rules.local_lease_s
        self.world.started.append(self.world.now)
