"""Single commands to the admission's script, at times that the test chooses, on a real server.

For tests of one rule of the script each. ``admission_peers`` imitates whole processes.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import redis
from redis.client import PubSub

from brimful.state.keys import admission_keys, everyone_channel, process_channel
from brimful_worker.admission import Limits, mark_clean
from support.admission_peers import timed_call

_tags = itertools.count()
LIMITS = Limits(
    slots=4, starts=None, window_s=5, guard_s=0.5, lease_s=4, starvation_s=3, circuit_breaker=0, slow_start_s=1
).fields()


class Script:
    """A fleet's keys, and the processes that send commands. Times are in milliseconds."""

    def __init__(self, client: redis.Redis, *, clean: bool = True, **limits: Any) -> None:
        """``limits``: fields as Redis stores them, beside LIMITS. ``clean``: nobody waits for others to join."""
        self.client = client
        self.tag = f"script{next(_tags)}"
        self.keys = admission_keys(self.tag)
        self.limits = {**LIMITS, **limits}
        self.now = 1_000_000
        info: Any = client.info("server")
        self.server = str(info["run_id"])
        self.granted_at: dict[str, int] = {}
        """Ticket → when, of all that its process has taken."""
        self._commands: dict[str, int] = {}
        self._epochs: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._epoch_numbers = itertools.count(1)
        self._tickets = itertools.count(1)
        self._marks = itertools.count(1)
        self._subscriptions: dict[str, PubSub] = {}
        if clean:
            mark_clean(client, self.tag)

    def close(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()

    def later(self, milliseconds: int) -> Script:
        self.now += milliseconds
        return self

    def listen(self, *processes: str) -> None:
        """They receive what is published; others can be granted in their own turns only."""
        for name in processes:
            self._subscriptions[name] = self.client.pubsub()
            for channel in (everyone_channel(self.tag), process_channel(self.tag, name)):
                self._subscriptions[name].subscribe(channel)
                self._receive(name, "subscribe")

    def deafen(self, process: str) -> None:
        self._subscriptions[process].unsubscribe()
        for _ in range(2):
            self._receive(process, "unsubscribe")
        self._subscriptions.pop(process).close()

    def published(self, process: str = "aa") -> list[tuple[str, dict[str, Any]]]:
        """What it has received since the last call: its name or ``everyone``, and the message."""
        mark = f"mark {next(self._marks)}"
        self.client.publish(process_channel(self.tag, process), mark)
        messages = []
        while (got := self._receive(process, "message"))["data"] != mark:
            messages.append((got["channel"].rsplit(":", 1)[-1], json.loads(got["data"])))
        return messages

    def forget(self, *names: str) -> None:
        """The server loses these keys, or all that it knows of the fleet."""
        self.client.delete(*[self.keys[name] for name in names or self.keys])

    def join(self, process: str = "aa", **reported: Any) -> dict[str, Any]:
        """Its first command in an epoch. ``reported``: of the field ``join``, or of the message itself as ``_name``."""
        fields = {name[1:]: reported.pop(name) for name in list(reported) if name.startswith("_")}
        reported = {name: value for name, value in reported.items() if value is not None}
        self._seen[process] = 0
        reply = self._send(process, "", join={"defaults": self.limits, "leases": [], **reported}, **fields)
        assert reply["status"] == "ok"
        return reply

    def turn(self, process: str = "aa", **fields: Any) -> dict[str, Any]:
        """A later command of the process."""
        if process not in self._commands:
            self.join(process)
        return self._send(process, self._epochs[process], **fields)

    def overtaken(self, process: str, **fields: Any) -> dict[str, Any]:
        """A command of the process that arrives after the one that it has sent next."""
        self.turn(process)
        self._commands[process] -= 2
        reply = self._send(process, self._epochs[process], **fields)
        self._commands[process] += 1
        return reply

    def ticket(self, process: str = "aa", queue: str = "b", tokens: int = 0, name: str = "") -> str:
        number = f"{next(self._tickets):06d}"
        return f"{process}.{queue}.{number}{'-' + name if name else ''}.{tokens}"

    def ask(
        self, process: str = "aa", queue: str = "b", count: int = 1, *, tokens: int = 0, waited: int = 0
    ) -> list[str]:
        """The granted ones, of new tickets and of those that wait in this process."""
        tickets = [self.ticket(process, queue, tokens) for _ in range(count)]
        return granted(self.turn(process, ask=[[ticket, waited] for ticket in tickets]))

    def look(self, process: str = "aa") -> list[str]:
        """What a turn without news grants the process."""
        return granted(self.turn(process))

    def end(self, *tickets: str, verdict: int = 1, cooldown: int = 0, used: int = -1, undo: int = 0) -> dict[str, Any]:
        """Their process, that of the first, releases them."""
        process = tickets[0].split(".")[0]
        return self.turn(process, release=[[ticket, cooldown, verdict, used, undo] for ticket in tickets])

    def answer(self, *tickets: str, refused: int = 0, took: int = 0, size: int = 1) -> dict[str, Any]:
        """Their process releases them with what the provider answered. ``refused``: 0 = accepted, 1 by the limit on
        slots, 2 by that on starts, 3 by either.
        """
        process = tickets[0].split(".")[0]
        release = [[ticket, 0, -1 if refused else 1, -1, 0] for ticket in tickets]
        answers = {ticket: [self.granted_at[ticket], refused, took, size] for ticket in tickets}
        return self.turn(process, release=release, answers=answers)

    def set_limits(self, **fields: int) -> None:
        """As the operator does, under the next revision."""
        self.client.hset(self.keys["limits"], mapping=fields)  # type: ignore[arg-type]  # numbers are stored as text
        self.client.hincrby(self.keys["limits"], "rev", 1)

    def held(self) -> dict[str, int]:
        """Slots that are taken → until when. Those that cool down begin with ``~``."""
        return self._scores("slots")

    def starts(self) -> dict[str, int]:
        return self._scores("starts")

    def waiting(self, queue: str = "batch") -> dict[str, int]:
        return self._scores(queue)

    def _scores(self, key: str) -> dict[str, int]:
        found: Any = self.client.zrange(self.keys[key], 0, -1, withscores=True)
        return {ticket: int(score) for ticket, score in found}

    def _receive(self, process: str, kind: str) -> dict[str, Any]:
        while True:
            got = self._subscriptions[process].get_message(timeout=60)
            assert got, "the server has not answered a subscription"
            if got["type"] == kind:
                return dict(got)

    def _send(self, process: str, epoch: str, **fields: Any) -> dict[str, Any]:
        self._commands[process] = self._commands.get(process, 0) + 1
        message = {
            "process": process,
            "command": self._commands[process],
            "epoch": epoch,
            "server": self.server,
            "new_epoch": f"e{next(self._epoch_numbers)}",
            "lease_ms": self.limits["lease_ms"],
            "seen": self._seen.get(process, 0),
            "rev": "",
            **fields,
        }
        reply = timed_call(self.client, self.tag, message, self.now)
        if reply["status"] in ("late", "frozen"):
            self._commands[process] -= 1  # it is sent again
        if reply["status"] == "ok":
            self._epochs[process] = reply["epoch"]
            self.granted_at |= {grant[1]: grant[2] for grant in reply.get("grants", [])}
            numbers = [grant[0] for grant in reply.get("grants", [])]
            self._seen[process] = max([self._seen.get(process, 0), reply.get("base", 0), *numbers])
        return reply


def granted(reply: dict[str, Any]) -> list[str]:
    return [grant[1] for grant in reply.get("grants", [])]
