"""The one voice of a process towards Redis: everything its coroutines want goes through one turn at a time.

Failure mode: when Redis is away the turn is repeated, word for word and under the same number, until it is answered;
meanwhile nothing is granted, and leases that cannot be renewed in time end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import Any

import orjson

from brimful_worker.admission.keys import Keys
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits, Rules, gather_s
from brimful_worker.admission.waiters import WORKLOADS, Waiter
from brimful_worker.admission.wire.outgoing import Outbox
from brimful_worker.admission.wire.pending_grants import Inbox
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.rpc import Answer, Rpc
from brimful_worker.admission.wire.subscriber import Subscriber
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import NAP_S

log = logging.getLogger(__name__)

_UNHEARD_POLL_S = 0.25
"""Pace of a waiting process whose pushes cannot come."""
_UNHEARD_MS = 500
"""A push that the inbox brings so late was lost."""
_TICK_S = 0.001
"""Redis's clock is read in whole milliseconds."""
_SILENT_LEASES = 1.5
"""After so many leases without a turn the server may have forgotten us: join anew."""
_HOST = socket.gethostname()


class Coordinator:
    """Runs on one event loop; :meth:`run` speaks for :attr:`local_state`."""

    def __init__(self, url: str, tag: str, limits: Limits, name: str) -> None:
        self.process = secrets.token_hex(5)
        self.name = name
        self.joined = asyncio.Event()
        """Set with the first turn that Redis has answered."""
        keys = Keys(tag)
        self._subscriber = Subscriber(url, keys, self.process, self._on_push)
        self._clock = RedisClock()
        self.talk = Rpc(url, keys, self.process, self._subscriber, self._clock)
        self.local_state = LocalState(self.process, limits, self._clock, self._speak_soon)
        self._inbox = Inbox(self.local_state.granted)
        self._wake = asyncio.Event()
        self._at: float | None = None
        self._number = 0
        self._epoch = ""
        self._rev = ""
        self._overrides: dict[str, int] | None = None
        self._alive, self._used, self._used_at, self._spent = 0, 0, 0.0, 0
        self._paused_until, self._pause_reason = 0.0, ""
        self._last_turn = boot_time()
        self._worker_text = ""
        self._leaving = False
        self._differs = self._differed = False

    def pause(self, seconds: float, reason: str) -> None:
        """At the next turn the whole fleet is paused."""
        self.local_state.outbox.hold((max(0, round(seconds * 1000)), reason))
        self._speak_soon()

    def leave(self) -> list[Waiter]:
        """From now on nothing is asked. Returns the tickets that still waited."""
        self._leaving = True
        self.local_state.closed = "the admission is closed"
        self._speak_soon()
        return self.local_state.waiting.drain()

    async def run(self) -> None:
        """Speaks until it has left. Cancel it to give up at once."""
        listening = asyncio.create_task(self._subscriber.run(), name="brimful-listener")
        try:
            while True:
                await self._until_due()
                # What else ends in this turn of the loop, or within a moment where much is held, goes along.
                await asyncio.sleep(self._moment())
                leaving = self._leaving
                await self._turn()
                if leaving and not self.local_state.outbox.releases:
                    return
        except Exception as fault:
            log.critical("admission: the coordinator failed; this process starts nothing more", exc_info=fault)
            self.local_state.fail(fault)
            raise
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await self.talk.close()
            self.local_state.close()

    # when to speak

    def _speak_soon(self) -> None:
        self.local_state.outbox.urgent = True
        self._wake.set()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self.local_state.outbox or self._epoch == "" or self._inbox.gap):
            due = self._due()
            if due <= boot_time():
                return
            self._wake.clear()
            timer = loop.call_later(min(due - boot_time(), NAP_S), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    def _moment(self) -> float:
        """How much longer than the loop's turn may be waited for company."""
        if self._leaving or not self._epoch or self.local_state.outbox.pause:
            return 0.0
        return max(0.0, self._last_turn + gather_s(len(self.local_state.held)) - boot_time())

    def _due(self) -> float:
        local_state, rules = self.local_state, self.local_state.rules
        active = bool(local_state.waiting or local_state.held)
        due = self._last_turn + (rules.heartbeat_s if active else rules.idle_s)
        if (renewal := local_state.next_renewal()) is not None:
            due = min(due, renewal)
        if local_state.waiting and not self._subscriber.listening:
            due = min(due, self._last_turn + _UNHEARD_POLL_S)
        return due if self._at is None else min(due, self._at)

    # what to say

    async def _turn(self) -> None:
        if boot_time() - self._last_turn > _SILENT_LEASES * self.local_state.rules.lease_s:
            self._epoch = ""
        taken = self.local_state.outbox.take()
        message = self._compose(taken)
        self._at = None
        answer = await self.talk.say(message, lambda: self._inbox.seen)
        if answer.reply["status"] != "ok":
            log.debug("admission: %s, epoch %s", answer.reply["status"], answer.reply["epoch"])
            self.local_state.outbox.put_back(taken)
            self._epoch = ""
            return
        self._take(message, answer)

    def _compose(self, taken: Outbox) -> dict[str, Any]:
        now, local_state = boot_time(), self.local_state
        self._number += 1
        message: dict[str, Any] = {
            "process": self.process,
            "command": self._number,
            "epoch": self._epoch,
            "lease_ms": round(local_state.rules.lease_s * 1000),
            "rev": self._rev,
        }
        fresh = local_state.waiting.register(local_state.rules.registered)
        if not self._epoch:
            self._inbox.restart()
            message["join"] = self._join(now, taken)
            if (left := self._paused_until - now) > 0:  # a server that lost its memory lost the pause too
                taken.hold((round(left * 1000), self._pause_reason))
            fresh = list(local_state.waiting.registered())
            self._worker_text = ""
        else:
            if renew := local_state.to_renew(now):
                message["renew"] = renew
            if self._differs:
                message["defaults"] = local_state.limits.fields()
        if fresh:
            message["ask"] = [[ticket.id, ticket.waited_ms] for ticket in fresh]
        if taken.releases:
            message["release"] = taken.releases
        if taken.cancels:
            message["cancel"] = taken.cancels
        if taken.pause:
            message["pause"] = taken.pause
        if (text := self._describe()) != self._worker_text:
            self._worker_text = message["worker"] = text
        if self._leaving:
            message["leave"] = True
        return message

    def _join(self, now: float, taken: Outbox) -> dict[str, Any]:
        """What a server that may know nothing must know of us. Ended leases that could not be told yet count as held:
        their release follows in the same turn. So do lost ones whose requests are still being ended."""
        local_state, rules = self.local_state, self.local_state.rules
        local_state.history.trim(now, rules.window_s + rules.guard_s)
        tickets = [*local_state.live(now), *local_state.ending, *[release[0] for release in taken.releases]]
        told: dict[str, Any] = {"defaults": local_state.limits.fields(), "leases": [[ticket] for ticket in tickets]}
        if rules.starts:
            told["starts"] = [[ticket, age] for ticket, age, _ in local_state.history.ages(now)]
        if rules.tokens:
            told["tokens"] = local_state.history.ages(now)
        if self._alive:
            age_ms = int((now - self._used_at) * 1000) - 2  # rounding must not put a start after the look that saw it
            told |= {"alive": self._alive, "used": self._used, "used_age_ms": max(0, age_ms)}
        if self._overrides:
            told["overrides"] = self._overrides
        if self._spent:
            told["spent"] = self._spent
        return told

    def _describe(self) -> str:
        behind = {workload.value: self.local_state.waiting.behind(queue) for workload, queue in WORKLOADS.items()}
        text: bytes = orjson.dumps({"name": self.name, "host": _HOST, "pid": os.getpid(), **behind})
        return text.decode()

    # what comes back

    def _take(self, message: dict[str, Any], answer: Answer) -> None:
        local_state, sent, received, reply = self.local_state, answer.sent, answer.received, answer.reply
        now_ms = reply["now"]
        if reply["epoch"] != self._epoch:
            self._clock.reset()
            self._epoch = reply["epoch"]
        self._clock.note(sent, now_ms)
        self._last_turn = sent
        if limits := reply.get("limits"):
            self._rev = reply["rev"]
            self._overrides = reply.get("overrides")
            local_state.obey(Rules.from_fields(limits))
            self.talk.be_patient(local_state.rules.patience_s)
        if "join" in message or "defaults" in message:
            self._differs = bool(reply.get("differs"))
        if self._differs and not self._differed:
            self._differed = True
            log.warning(
                "admission: this process's limits differ from the others', which stay in force: %s", local_state.rules
            )
        if "alive" in reply:  # not while all is being rebuilt: what was known before is worth more then
            self._alive, self._used = reply["alive"], reply["used"]
            self._used_at = self._clock.not_after(now_ms)
        if pause := reply.get("pause"):
            self._paused_until, self._pause_reason = received + pause[0] / 1000, pause[1]
        self._spent = reply.get("spent", self._spent)
        if "join" in message:
            self._inbox.restart(reply["base"])
            local_state.rejoined(answer.first_sent, received)
        else:
            local_state.renewed(sent)
        grants = reply.get("grants") or ()
        if any(not self._inbox.knows(number) and now_ms - granted > _UNHEARD_MS for number, _, granted in grants):
            self._subscriber.reset()  # it was pushed long ago: the listener's connection is dead without saying so
        self._inbox.replied(grants)
        for ticket in reply.get("lost") or ():
            local_state.lost(ticket)
        for ticket in reply.get("refused") or ():
            local_state.refused(ticket)
        if (at := reply.get("at")) is not None:
            self._come_at(received, at - now_ms)
        local_state.history.trim(received, local_state.rules.window_s + local_state.rules.guard_s)
        local_state.plan_aborts()
        self.joined.set()

    def _on_push(self, push: dict[str, Any]) -> None:
        """A message from one of our channels; ``{"epoch": None}`` when the listener lost its connection."""
        if "now" not in push:  # to everyone: a new epoch, a new process, changed limits
            if push.get("epoch") == self._epoch:
                self._alive = max(self._alive, push.get("alive", 0))
            if push.get("epoch") != self._epoch or "limits" in push:
                self._speak_soon()
            return
        if push["epoch"] != self._epoch:
            return  # of an epoch that is over, or while we join: what it granted is asked anew
        self._inbox.pushed(push.get("grants") or ())
        if self._inbox.gap:
            self._wake.set()
        if (at := push.get("at")) is not None:
            self._come_at(boot_time(), at - push["now"])
        self.local_state.plan_aborts()

    def _come_at(self, heard: float, delay_ms: float) -> None:
        at = heard + delay_ms / 1000 + _TICK_S
        self._at = at if self._at is None else min(at, self._at)  # push and reply may overtake each other
        self._wake.set()
