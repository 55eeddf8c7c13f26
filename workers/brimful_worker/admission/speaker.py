"""The one voice of a process towards Redis: everything its coroutines want goes through one turn at a time.

Failure mode: when Redis is away the turn is repeated, word for word and under the same number, until it is answered;
meanwhile nothing is granted, and leases that cannot be renewed in time end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections import OrderedDict
from typing import Any

import orjson
import redis.exceptions

from brimful.errors import BudgetExhausted, FleetError
from brimful.names import Workload
from brimful_worker.admission.clock import RedisClock
from brimful_worker.admission.history import History
from brimful_worker.admission.keys import Keys
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.link import CommandLink, LinkDown
from brimful_worker.admission.listener import Listener
from brimful_worker.admission.outbox import Outbox
from brimful_worker.admission.policy import Limits, Rules, abort_margin, wire_lag
from brimful_worker.admission.scripts import exchange_arguments, load
from brimful_worker.admission.tickets import Ticket, Waiting
from brimful_worker.admission.watchdog import Watchdog

log = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_MOST_S = 0.05, 1.0
_UNHEARD_POLL_S = 0.25
"""Pace of a waiting process whose pushes cannot come."""
_STALE_MANY = 20
_UNHEARD_MS = 500
"""A push that the inbox brings so late was lost."""
_TICK_S = 0.001
"""Redis's clock is read in whole milliseconds."""
_HOST = socket.gethostname()
_SILENT_LEASES = 1.5
"""After so many leases without a turn the server may have forgotten us: join anew."""


class Speaker:
    """Runs on one event loop. ``ask``, ``end``, ``cancel`` and ``pause`` never wait; ``run`` speaks."""

    def __init__(self, url: str, tag: str, limits: Limits, name: str) -> None:
        self.process = secrets.token_hex(5)
        self.name = name
        self.limits = limits
        self.rules = Rules.from_fields(limits.fields())
        self.joined = asyncio.Event()
        self.commands = 0
        """Turns taken, repeated ones included."""
        self.refusal = ""
        """Why Redis cannot be reached, while it cannot."""
        self.held: OrderedDict[str, Lease] = OrderedDict()
        self.waiting = Waiting(self.process)
        self._keys = Keys(tag)
        self._link = CommandLink(url, f"brimful-{self.process}")
        self._listener = Listener(url, self._keys, self.process, self._on_push)
        self._watchdog = Watchdog()
        self._clock = RedisClock()
        self._history = History()
        self._outbox = Outbox()
        self._wake = asyncio.Event()
        self._at: float | None = None
        self._number = 0
        self._epoch = ""
        self._seen = 0
        self._early: dict[int, list[Any]] = {}
        self._speaking = False
        self._rev = -1
        self._overrides: dict[str, int] | None = None
        self._alive, self._used, self._used_at = 0, 0, 0.0
        self._last_turn = time.monotonic()
        self._worker_text = ""
        self._leaving = False
        self._differed = False
        self._stale = 0
        self._abort_timer: asyncio.TimerHandle | None = None

    # what coroutines say; nothing here waits

    def ask(self, workload: Workload, tokens: int, since: float) -> Ticket:
        ticket = self.waiting.add(workload, tokens, since, asyncio.get_running_loop().create_future())
        if self.waiting.wants_registering(self.rules.registered):
            self._speak_soon()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """A ticket is no longer wanted. Its future must be done; a lease in it is given back."""
        if not ticket.future.cancelled() and ticket.future.exception() is None:
            lease = ticket.future.result()
            lease.given_back = True
            self.end(lease, failed=False)
        elif self.waiting.cancel(ticket):
            self._outbox.cancels.append(ticket.id)
            self._speak_soon()

    def end(self, lease: Lease, *, failed: bool) -> None:
        """The lease's request is over."""
        lease.end()
        self.held.pop(lease.id, None)
        verdict = -1 if lease.ok is None else int(lease.ok)
        used = -1 if lease.tokens_used is None else lease.tokens_used
        if lease.given_back:
            self._note_stale(lease)
            self._history.drop(lease.id)
            self._outbox.releases.append([lease.id, 0, -1, -1, 1])
        else:
            self._stale = 0
            cool = round(lease.cooloff(self.limits.cooloff_s, failed) * 1000)
            if used >= 0:
                self._history.settle(lease.id, used)
            self._outbox.releases.append([lease.id, cool, verdict, used, 0])
        self._speak_soon()

    def _note_stale(self, lease: Lease) -> None:
        self._stale += time.monotonic() > lease.wire_deadline
        if self._stale == _STALE_MANY:
            log.warning(
                "admission: %d grants in a row came too late to be used: the loop is blocked, or Redis too far for a "
                "guard of %.3g s (BRIMFUL_GUARD_S)",
                self._stale,
                self.rules.guard_s,
            )

    def pause(self, seconds: float, reason: str) -> None:
        self._outbox.hold((max(0, round(seconds * 1000)), reason))
        self._speak_soon()

    def leave(self) -> list[Ticket]:
        """From now on nothing is asked. Returns the tickets that still waited."""
        self._leaving = True
        self._speak_soon()
        return self.waiting.drain()

    def _speak_soon(self) -> None:
        self._outbox.urgent = True
        self._wake.set()

    # the turns

    async def run(self) -> None:
        """Speaks until it has left. Cancel it to give up at once."""
        listening = asyncio.create_task(self._listener.run(), name="brimful-listener")
        try:
            while True:
                await self._until_due()
                await asyncio.sleep(0)  # what else ends in this turn of the loop goes into the same command
                leaving = self._leaving
                await self._turn()
                if leaving and not self._outbox.releases:
                    return
        except Exception as fault:
            log.critical("admission: the speaker failed; this process starts nothing more", exc_info=fault)
            for ticket in self.waiting.drain():
                ticket.future.set_exception(FleetError(f"the admission failed: {fault}"))
            raise
        finally:
            if self._abort_timer is not None:
                self._abort_timer.cancel()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await self._link.close()
            for lease in list(self.held.values()):
                self._lose(lease)
            self._watchdog.stop()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._outbox or self._epoch == "" or (self._early and not self._speaking)):
            due = self._due()
            if due <= time.monotonic():
                return
            self._wake.clear()
            timer = loop.call_at(loop.time() + due - time.monotonic(), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    def _due(self) -> float:
        rules = self.rules
        if self.waiting or self.held:
            due = self._last_turn + rules.heartbeat_s
        else:
            due = self._last_turn + rules.idle_s
        if self.held:
            due = min(due, next(iter(self.held.values())).renewed + rules.heartbeat_s)
        if self.waiting and not self._listener.listening:
            due = min(due, self._last_turn + _UNHEARD_POLL_S)
        return due if self._at is None else min(due, self._at)

    async def _turn(self) -> None:
        if time.monotonic() - self._last_turn > _SILENT_LEASES * self.rules.lease_s:
            self._epoch = ""
        taken = self._outbox.take()
        message = self._compose(taken)
        self._at = None
        self._speaking = True
        try:
            sent, received, reply = await self._until_answered(message)
        finally:
            self._speaking = False
        if reply["status"] != "ok":
            log.debug("admission: %s, epoch %s", reply["status"], reply["epoch"])
            self._outbox.put_back(taken)
            self._epoch = ""
            return
        self._take(message, reply, sent, received)

    def _compose(self, taken: Outbox) -> dict[str, Any]:
        now = time.monotonic()
        self._number += 1
        message: dict[str, Any] = {
            "process": self.process,
            "command": self._number,
            "epoch": self._epoch,
            "lease_ms": round(self.rules.lease_s * 1000),
            "rev": self._rev,
        }
        fresh = self.waiting.register(self.rules.registered)
        if not self._epoch:
            self._seen = 0
            self._early.clear()
            message["join"] = self._join(now, taken)
            fresh = list(self.waiting.registered())
            self._worker_text = ""
        elif renew := self._to_renew(now):
            message["renew"] = renew
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
        their release follows in the same turn."""
        self._history.trim(now, self.rules.window_s + self.rules.guard_s)
        leases = [[lease.id] for lease in self.held.values() if lease.deadline > now]
        leases += [[release[0]] for release in taken.releases]
        told: dict[str, Any] = {"defaults": self.limits.fields(), "leases": leases}
        if self.rules.starts:
            told["starts"] = [[ticket, age] for ticket, age, _ in self._history.ages(now)]
        if self.rules.tokens:
            told["tokens"] = self._history.ages(now)
        if self._alive:
            told |= {"alive": self._alive, "used": self._used, "used_age_ms": round((now - self._used_at) * 1000)}
        if self._overrides:
            told["overrides"] = self._overrides
        return told

    def _to_renew(self, now: float) -> list[str]:
        renew = []
        for lease in self.held.values():  # oldest renewal first
            if now - lease.renewed < self.rules.renew_after_s:
                break
            renew.append(lease.id)
        return renew

    def _describe(self) -> str:
        text: bytes = orjson.dumps(
            {
                "name": self.name,
                "host": _HOST,
                "pid": os.getpid(),
                "interactive": self.waiting.behind(Workload.INTERACTIVE),
                "batch": self.waiting.behind(Workload.BATCH),
            }
        )
        return text.decode()

    async def _until_answered(self, message: dict[str, Any]) -> tuple[float, float, dict[str, Any]]:
        """Monotonic time of sending, of the reply, and the reply. Repeats the same command until it is answered."""
        delay, told = _RETRY_FIRST_S, False
        while True:
            try:
                if not self._link.connected:
                    await self._listener.wait_listening()
                    await self._link.connect()
                answer = await self._send(message)
            except (LinkDown, redis.exceptions.ResponseError) as error:
                if self.refusal and not told:  # a single broken connection is not worth a word
                    told = True
                    log.warning("admission: Redis does not answer, nothing is started until it does: %s", error)
                self.refusal = str(error)
                await self._link.close()
                await asyncio.sleep(delay * (0.5 + random.random() / 2))
                delay = min(2 * delay, _RETRY_MOST_S)
                continue
            self.refusal = ""
            if told:
                log.warning("admission: Redis answers again")
            return answer

    async def _send(self, message: dict[str, Any]) -> tuple[float, float, dict[str, Any]]:
        script = load("exchange")
        sent = time.monotonic()
        message |= {
            "server": self._link.server,
            "uptime_ms": int(self._link.uptime_s * 1000),
            "new_epoch": secrets.token_hex(8),
            "seen": self._seen,
            "bound_ms": self._clock.bound_ms(sent),
        }
        if message["bound_ms"] is None:
            del message["bound_ms"]
        arguments = exchange_arguments(self._keys, orjson.dumps(message))
        self.commands += 1
        try:
            raw = await self._link.call("EVALSHA", script.sha, *arguments)
        except redis.exceptions.NoScriptError:
            sent = time.monotonic()
            self.commands += 1
            raw = await self._link.call("EVAL", script.text, *arguments)
        return sent, time.monotonic(), orjson.loads(raw)

    # what comes back

    def _take(self, message: dict[str, Any], reply: dict[str, Any], sent: float, received: float) -> None:
        now_ms = reply["now"]
        if reply["epoch"] != self._epoch:
            self._clock.reset()
            self._epoch = reply["epoch"]
            for lease in self.held.values():
                lease.renewed = sent
        self._clock.note(sent, received, now_ms)
        self._last_turn = sent
        if limits := reply.get("limits"):
            self._rev = reply["rev"]
            self._overrides = reply.get("overrides")
            self.rules = Rules.from_fields(limits)
        if reply.get("differs") and not self._differed:
            self._differed = True
            log.warning("admission: this process's limits differ from those in force, which stay: %s", self.rules)
        self._alive, self._used, self._used_at = reply["alive"], reply["used"], sent
        self._renewed(message.get("renew") or (self.held if "join" in message else ()), sent)
        self._take_inbox(reply.get("grants") or (), now_ms)
        for ticket in reply.get("lost") or ():
            if (forgotten := self.held.get(ticket)) is not None:
                self._lose(forgotten)
        for ticket in reply.get("refused") or ():
            self._refuse(ticket)
        if (at := reply.get("at")) is not None:
            self._come_at(received, at - now_ms)
        self.joined.set()
        self._history.trim(received, self.rules.window_s + self.rules.guard_s)
        self._plan_aborts()

    def _take_inbox(self, grants: Any, now_ms: float) -> None:
        """All grants that this process has not confirmed."""
        for number, ticket, granted in grants:
            if number > self._seen and number not in self._early and now_ms - granted > _UNHEARD_MS:
                self._listener.reset()  # it was pushed long ago: the listener's connection is dead without saying so
            self._on_grant(number, ticket, granted)
        for number in sorted(self._early):  # nothing below them is left to come
            ticket, granted = self._early.pop(number)
            self._seen = number
            self._grant(ticket, granted)

    def _renewed(self, tickets: Any, sent: float) -> None:
        margin = abort_margin(self.rules.lease_s, self.limits.cooloff_s)
        for ticket in list(tickets):
            if (lease := self.held.get(ticket)) is not None:
                lease.renewed = sent
                lease.deadline = sent + self.rules.lease_s - margin
                self.held.move_to_end(ticket)

    def _come_at(self, heard: float, delay_ms: float) -> None:
        self._at = heard + delay_ms / 1000 + _TICK_S
        self._wake.set()

    def _on_push(self, push: dict[str, Any]) -> None:
        """A message from one of our channels; ``{"epoch": None}`` when the listener lost its connection."""
        if "now" not in push:  # to everyone: a new epoch, changed limits
            if push.get("epoch") != self._epoch or "limits" in push:
                self._speak_soon()
            return
        if push["epoch"] != self._epoch or (self._speaking and not self._epoch):
            return
        for number, ticket, granted in push.get("grants") or ():
            self._on_grant(number, ticket, granted)
        if (at := push.get("at")) is not None:
            self._come_at(time.monotonic(), at - push["now"])
        self._plan_aborts()

    def _on_grant(self, number: int, ticket: str, granted_ms: float) -> None:
        """Grants are numbered: each is taken once, and none is taken before the one ahead of it."""
        if number <= self._seen:
            return
        self._early[number] = [ticket, granted_ms]
        while (following := self._early.pop(self._seen + 1, None)) is not None:
            self._seen += 1
            self._grant(following[0], following[1])
        if self._early:
            self._wake.set()  # one is missing: the next turn brings it

    def _grant(self, ticket_id: str, granted_ms: float) -> None:
        ticket = self.waiting.pop(ticket_id)
        granted = self._clock.not_after(granted_ms)
        deadline = granted + self.rules.lease_s - abort_margin(self.rules.lease_s, self.limits.cooloff_s)
        timed = bool(self.rules.guard_s and (self.rules.starts or self.rules.tokens))
        wire = granted + wire_lag(self.rules.guard_s) if timed else deadline
        since = granted if ticket is None else ticket.since
        lease = Lease(ticket_id, max(0.0, time.monotonic() - since), min(wire, deadline), deadline, self._watchdog)
        lease.renewed = granted
        if ticket is None or ticket.future.done():
            lease.given_back = True
            self.end(lease, failed=False)
            return
        if self.rules.starts or self.rules.tokens:
            self._history.add(ticket_id, granted, ticket.tokens)
        self.held[ticket_id] = lease
        ticket.future.set_result(lease)
        if self.waiting.wants_registering(self.rules.registered):
            self._speak_soon()

    def _refuse(self, ticket_id: str) -> None:
        ticket = self.waiting.pop(ticket_id)
        self._outbox.cancels.append(ticket_id)
        self._speak_soon()
        if ticket is not None and not ticket.future.done():
            ticket.future.set_exception(BudgetExhausted("the fleet's token budget is at its end", "budget"))

    # leases that end under their holders

    def _plan_aborts(self) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
        if not self.held:
            return
        loop = asyncio.get_running_loop()
        first = next(iter(self.held.values())).deadline
        self._abort_timer = loop.call_at(loop.time() + first - time.monotonic(), self._abort_overdue)

    def _abort_overdue(self) -> None:
        now = time.monotonic()
        for lease in list(self.held.values()):
            if lease.deadline > now:
                break
            log.warning("admission: a lease could not be renewed in time; its request is ended")
            self._lose(lease)
        self._plan_aborts()

    def _lose(self, lease: Lease) -> None:
        """Neither renewed nor told as held any more; its body is ended, and says so when it has ended."""
        self.held.pop(lease.id, None)
        lease.lose()
