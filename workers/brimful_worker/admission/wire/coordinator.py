"""The process's one conversation with Redis: collects what its coroutines want, and sends one command at a time.

Failure mode: when Redis is away the command is repeated, unchanged and under the same number, until it is answered.
Meanwhile nothing is granted, and leases that cannot be renewed in time end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from brimful.errors import FleetError
from brimful.limits import limits_from_redis
from brimful.runtime.aio import until_tick
from brimful_worker.admission.errors import SchemaMismatch
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits, Pace, Rules
from brimful_worker.admission.waiters import WORKLOADS, Queue
from brimful_worker.admission.wire.fleet_view import FleetView
from brimful_worker.admission.wire.learnt import Learnt
from brimful_worker.admission.wire.outgoing import Outgoing
from brimful_worker.admission.wire.pending_grants import PendingGrants
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.rpc import SCHEMA, Answer, Rpc, other_schema
from brimful_worker.admission.wire.subscriber import Subscriber
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import NAP_S

log = logging.getLogger(__name__)

_POLL_S = 0.25
"""Time between commands of a process that waits and cannot receive pushes."""
_LATE_MS = 500
"""A grant that a reply brings this long after it was pushed: the push was lost."""


class Coordinator:
    """Runs on one event loop; :meth:`run` sends and receives on behalf of :attr:`local_state`."""

    def __init__(self, url: str | Redis, tag: str, limits: Limits, describe: Callable[..., str]) -> None:
        self.process = secrets.token_hex(5)
        self._describe = describe
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first answer of Redis, or with what made :meth:`run` fail before it."""
        self._subscriber = Subscriber(url, tag, self.process, self._on_push)
        self._clock = RedisClock()
        self.rpc = Rpc(url, tag, self.process, self._subscriber, self._clock)
        self.rpc.set_timeout(Rules.from_fields(limits.fields(), 0.0).reply_timeout_s, first=True)
        self._wake = asyncio.Event()
        self.local_state = LocalState(self.process, limits, self._clock, self._wake.set)
        self._grants = PendingGrants(self.local_state.granted)
        self._next_poll_at: float | None = None
        self._command_seq = 0
        self._epoch = ""
        """Empty: the next command joins."""
        self._rev = ""
        self.fleet_view = FleetView()
        self._learnt = Learnt(self.local_state)
        self._paused_until, self._pause_reason = 0.0, ""
        self._last_sent = boot_time()
        self._pace = Pace()
        self._description = ""
        self._leaving = False
        self._differs = False

    def pause(self, seconds: float, reason: str, *, until_accepted: bool = False) -> None:
        """Pause the whole fleet with the next command."""
        add = self.local_state.outgoing.add_busy if until_accepted else self.local_state.outgoing.add_pause
        add((max(0, round(seconds * 1000)), reason))
        self._wake.set()

    def leave(self) -> None:
        """Cancel all waiters, and let :meth:`run` send that to Redis and return."""
        self._leaving = True
        self.local_state.stop(FleetError("the admission is closed"), cancel=True)
        self._send_soon()

    async def run(self) -> None:
        """Returns after :meth:`leave`, or when nothing can be granted any more. Cancel it to stop at once."""
        try:
            await self._run()
        except Exception as error:
            failure = error if isinstance(error, FleetError) else FleetError(f"the admission failed: {error}")
            log.critical("%s; this process starts nothing more", failure, exc_info=None if failure is error else error)
            self.local_state.stop(failure, cancel=False)
            if not self.joined.done():
                self.joined.set_exception(failure)

    async def _run(self) -> None:
        subscribing = asyncio.create_task(self._subscriber.run(), name="brimful-subscriber")
        try:
            while True:
                await self._until_due()
                # What else happens in this pass of the event loop, or in a moment where much is held, goes along.
                await asyncio.sleep(self._gathering_s())
                leaving = self._leaving
                await self._exchange()
                if leaving and not self.local_state.outgoing.releases:
                    return
        finally:
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)
            await self.rpc.close()
            self.local_state.close()

    # when to send

    def _send_soon(self) -> None:
        self.local_state.outgoing.urgent = True
        self._wake.set()

    async def _until_due(self) -> None:
        while not (self.local_state.outgoing or self._epoch == "" or self._grants.gap):
            due = self._due()
            if due <= boot_time():
                return
            self._wake.clear()
            left_s = math.ceil(1000 * (due - boot_time())) / 1000  # uvloop rounds to milliseconds, also down
            timer = asyncio.get_running_loop().call_later(min(left_s, until_tick(NAP_S)), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    def _gathering_s(self) -> float:
        if self._leaving or not self._epoch or self.local_state.outgoing.pause or self.local_state.outgoing.busy:
            return 0.0
        state = self.local_state
        # Somebody waits for interactive requests: they are not delayed.
        lasting_s = 0.0 if state.waiting.count(Queue.INTERACTIVE) else state.outgoing.lasting_s
        return self._pace.wait_s(boot_time(), len(state.leases.held), len(state.waiting), lasting_s)

    def _due(self) -> float:
        state, rules = self.local_state, self.local_state.rules
        active = bool(state.leases.held or state.waiting)
        due = min(state.outgoing.due, self._last_sent + (rules.heartbeat_s if active else rules.idle_s))
        if (renewal := state.leases.next_renewal()) is not None:
            due = min(due, renewal)
        if not self._subscriber.subscribed and state.waiting:
            due = min(due, self._last_sent + _POLL_S)
        return due if self._next_poll_at is None else min(due, self._next_poll_at)

    # what to send

    async def _exchange(self) -> None:
        taken = self.local_state.outgoing.take()
        self._pace.sent(boot_time())
        message = self._message(taken)
        self._next_poll_at = None
        answer = await self.rpc.call(message, lambda: self._grants.seen)
        self.local_state.outgoing.add_pause(self.rpc.eviction.pause(self.local_state.rules.idle_s))
        status = answer.reply["status"]
        if status == "schema":
            raise SchemaMismatch(other_schema(SCHEMA, answer.reply["schema"]))
        if status == "ok":
            if not self.joined.done():
                await self.rpc.check_distance(answer, limits_from_redis(answer.reply["limits"])["lease_s"])
            self._apply(message, answer)
        else:
            log.debug("admission: %s, epoch %s", status, answer.reply["epoch"])
            self.local_state.outgoing.put_back(taken)
            self._epoch, self._clock.read_ms = "", answer.reply["now"]

    def _message(self, taken: Outgoing) -> dict[str, Any]:
        now, state = boot_time(), self.local_state
        self._command_seq += 1
        message: dict[str, Any] = {
            "process": self.process,
            "schema": SCHEMA,
            "command": self._command_seq,
            "epoch": self._epoch,
            "lease_ms": round(state.rules.lease_s * 1000),
            "rev": self._rev,
            "members": self.fleet_view.members[0],
        }
        fresh = state.waiting.register(state.rules.registered)
        if not self._epoch:
            self._grants.restart()
            message["join"] = self._join(now, taken)
            if (left := self._paused_until - now) > 0:  # a server that lost its memory lost the pause too
                taken.add_pause((round(left * 1000), self._pause_reason))
            fresh = list(state.waiting.registered())
            self._description = ""
        else:
            if renew := state.leases.to_renew():
                message["renew"] = renew
            if self._differs:
                message["defaults"] = state.limits.fields()
        optional: dict[str, Any] = {
            "ask": [[waiter.id, waiter.age_ms] for waiter in fresh],
            **taken.fields(),
            "leave": self._leaving,
        }
        message |= {name: value for name, value in optional.items() if value}
        behind = {workload.value: state.waiting.behind(queue) for workload, queue in WORKLOADS.items()}
        trips = self.rpc.round_trips
        trips.update(state.rules)
        behind |= {"rtt_ms": trips.rtt_ms, "lag_ms": trips.lag_ms}
        if (description := self._describe(**behind)) != self._description:
            self._description = message["worker"] = description
        return message

    def _join(self, now: float, taken: Outgoing) -> dict[str, Any]:
        """What a server that may have lost its memory must learn. Leases whose release has not been sent count as held:
        the same command releases them. So do lost ones whose requests are still being ended."""
        state, rules = self.local_state, self.local_state.rules
        state.recent_starts.trim(now, rules.window_s + rules.guard_s)
        tickets = [*state.leases.to_join(now), *state.ending, *[release[0] for release in taken.releases]]
        join: dict[str, Any] = {"defaults": state.limits.fields(), "leases": [[ticket] for ticket in tickets]}
        if rules.starts:
            join["starts"] = [[ticket, age] for ticket, age, _ in state.recent_starts.ages(now)]
        if rules.tokens:
            join["tokens"] = state.recent_starts.ages(now)
        return join | self.fleet_view.join_fields(now)

    # what Redis sends

    def _apply(self, message: dict[str, Any], answer: Answer) -> None:
        state, sent, received, reply = self.local_state, answer.sent, answer.received, answer.reply
        now_ms = reply["now"]
        if reply["epoch"] != self._epoch:
            self._clock.reset()
            self._epoch = reply["epoch"]
            self.fleet_view.new_epoch()
        self._clock.note(sent, received, now_ms)
        self.rpc.round_trips.note(received - sent, received - self._clock.not_after(now_ms))
        self._last_sent = sent
        if limits := reply.get("limits"):
            self._rev = reply["rev"]
            self.fleet_view.overrides = reply.get("overrides")
            self._learnt.given = Rules.from_fields(limits, state.limits.cooldown_s)
        self._learnt.replied(reply)
        self.rpc.set_timeout(state.rules.reply_timeout_s)
        if "join" in message or "defaults" in message:
            differed, self._differs = self._differs, bool(reply.get("differs"))
            if self._differs and not differed:
                log.warning("the fleet's limits stay in force (%s); this process's own are ignored", state.rules)
        self.fleet_view.learn(reply, self._clock)
        self._learn_members(reply)
        if pause := reply.get("pause"):
            self._paused_until, self._pause_reason = received + pause[0] / 1000, pause[1]
        if "join" in message:
            self._grants.restart(reply["base"])
            state.rejoined(answer.first_sent, received)
        else:
            state.leases.renewed(sent)
        grants = reply.get("grants") or ()
        if any(not self._grants.knows(number) and now_ms - granted > _LATE_MS for number, _, granted, *_ in grants):
            self._subscriber.reset()  # it was pushed long ago: the subscriber's connection is dead without saying so
        self._grants.replied(grants)
        state.renamed(reply.get("renamed") or ())
        for ticket in reply.get("lost") or ():
            state.lost(ticket)
        for ticket in reply.get("refused") or ():
            state.refused(ticket)
        state.outgoing.idle, state.outgoing.full_until = "idle" in reply, 0.0
        if (full_until := reply.get("full_until")) is not None:
            state.outgoing.full_until = self._clock.sent_at(now_ms, full_until)
        if (at := reply.get("at")) is not None:
            self._poll_at(now_ms, at)
        state.recent_starts.trim(received, state.rules.window_s + state.rules.guard_s)
        state.plan_aborts()
        if not self.joined.done():
            self.joined.set_result(None)

    def _on_push(self, push: dict[str, Any]) -> None:
        """A message on one of this process's channels, or ``{"epoch": None}`` after the subscriber's connection."""
        if "now" not in push:  # to all processes: a new epoch, another number of processes, changed limits
            if push.get("epoch") == self._epoch:
                self._learn_members(push)
                self._learnt.pushed(push)
                self.fleet_view.learn_pushed_limits(push, self._clock)
            if push.get("epoch") != self._epoch or "limits" in push:
                self._send_soon()
            return
        if push["epoch"] != self._epoch:
            return  # of another epoch, or during a join: what it granted is asked for again
        self.rpc.round_trips.note_push(boot_time() - self._clock.not_after(push["now"]))
        self._grants.pushed(push.get("grants") or ())
        if self._grants.gap:
            self._wake.set()
        if (at := push.get("at")) is not None:
            self._poll_at(push["now"], at)
        self.local_state.plan_aborts()

    def _learn_members(self, told: dict[str, Any]) -> None:
        """Confirm a newer list at once: a process that has just joined waits for it."""
        if self.fleet_view.learn_members(told):
            self._send_soon()

    def _poll_at(self, now_ms: float, at_ms: float) -> None:
        at = self._clock.sent_at(now_ms, at_ms)
        self._next_poll_at = at if self._next_poll_at is None else min(at, self._next_poll_at)  # either may come first
        self._wake.set()
