"""The rules of the admission in plain Python, written from DESIGN section 6 and the script's header, not from its code.

Time is what the script says: each turn is checked at the time in its reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TURNS = 4
PROBE_MS, PROBE_MOST_MS = 500, 30_000


def tokens_of(ticket: str) -> int:
    return int(ticket.rsplit(".", 1)[1])


@dataclass
class Model:
    limits: dict[str, int]
    listening: set[str]
    """Processes that are subscribed."""
    slots: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    queues: dict[str, dict[str, int]] = field(default_factory=lambda: {"s": {}, "i": {}, "b": {}})
    last_seen: dict[str, int] = field(default_factory=dict)
    pause_until: int = 0
    ramp: tuple[int, int] | None = None
    """Since when, and how many were granted since."""
    turn: int = 0
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Ticket → when it counts, and how many."""
    spent: int = 0
    """Of the budget."""
    failures: int = 0
    """In a row."""
    tripped: bool = False
    """The circuit breaker is open."""
    probe: str | None = None
    probe_at: int = 0
    probes: int = 0
    refused: list[str] = field(default_factory=list)
    """In the last turn, by the budget."""
    reached: set[str] = field(default_factory=set)
    """What has held a grant up, or decided who got it: pause, probe, slow start, tokens, budget waits, budget refuses,
    starved, reserve."""
    unconfirmed: dict[str, int] = field(default_factory=dict)
    """Process → grants pushed since it last spoke, and those of its last turn."""
    asked: dict[str, int] = field(default_factory=dict)
    """Process → when it was asked to confirm them."""

    @property
    def window(self) -> int:
        return self.limits["window_ms"] + self.limits["guard_ms"]

    def used(self, now: int, workload: str = "") -> int:
        return sum(at > now - self.window and f".{workload}" in ticket for ticket, at in self.starts.items())

    def time_passes(self, process: str, now: int) -> None:
        """What every turn does first: the process was seen, and what is due by now expires."""
        self.last_seen[process] = now
        for other, at in list(self.last_seen.items()):
            if at <= now - 2 * self.limits["lease_ms"] and other != process:
                self.forget(other)
        for ticket in [ticket for ticket, until in self.slots.items() if until <= now]:
            del self.slots[ticket]
            if not ticket.startswith("~"):
                self._spend(ticket, -1)

    def forget(self, process: str) -> None:
        del self.last_seen[process]
        self.unconfirmed.pop(process, None)
        self.asked.pop(process, None)
        for queue in self.queues.values():
            for ticket in [ticket for ticket in queue if ticket.startswith(process + ".")]:
                del queue[ticket]

    def pause(self, now: int, milliseconds: int) -> None:
        if now + milliseconds > max(self.pause_until, now):
            self.pause_until = now + milliseconds
            self.ramp = (self.pause_until, 0)

    def release(self, now: int, ticket: str, cool: int, verdict: int, used: int, undo: bool) -> bool:
        """False if the lease was lost already."""
        if undo:
            self.starts.pop(ticket, None)
            self.tokens.pop(ticket, None)
        self._judge(now, ticket, verdict)
        if self.slots.pop(ticket, None) is None:
            return False
        if not undo:
            self._spend(ticket, used)
            if used >= 0 and ticket in self.tokens:
                self.tokens[ticket] = self.tokens[ticket][0], used
        if cool:
            self.slots["~" + ticket] = now + cool
        return True

    def _spend(self, ticket: str, used: int) -> None:
        if self.limits["budget"]:
            self.spent += used if used >= 0 else tokens_of(ticket)

    def _judge(self, now: int, ticket: str, verdict: int) -> None:
        if verdict == 1:
            self.failures = 0
            if self.tripped:
                self.tripped, self.ramp = False, (now, 0)
        elif verdict == 0:
            self.failures += 1
            if self.tripped and ticket == self.probe:
                self.probes += 1
                self.probe_at = now + min(PROBE_MOST_MS, PROBE_MS * 2**self.probes)
            elif not self.tripped and 0 < self.limits["breaker"] <= self.failures:
                self.tripped, self.probes, self.probe_at = True, 0, now + PROBE_MS
        if ticket == self.probe or not self.tripped:
            self.probe = None

    def renew(self, now: int, ticket: str) -> bool:
        if ticket not in self.slots:
            return False
        self.slots[ticket] = now + self.limits["lease_ms"]
        return True

    def grant(self, sender: str, now: int) -> list[str]:
        granted = self._grant(sender, now)
        for process in {ticket.split(".")[0] for ticket in granted} - {sender}:
            if self.unconfirmed[process] >= self._most_unconfirmed():
                self.asked[process] = now
        return granted

    def _grant(self, sender: str, now: int) -> list[str]:
        granted: list[str] = []
        self.refused = []
        while (ticket := self._heads(sender, now).get("s")) is not None:
            if now < self.pause_until or self.used(now) >= self.limits["starts"]:
                return granted  # nothing overtakes a start without a slot
            del self.queues["s"][ticket]
            self.starts[ticket] = now
            process = ticket.split(".")[0]
            self.unconfirmed[process] = self.unconfirmed.get(process, 0) + 1
            granted.append(ticket)
        while (ticket := self._next(sender, now)) is not None:
            if not self._budget_allows(ticket):
                running = any(not holder.startswith("~") for holder in self.slots)
                if running or ticket.split(".")[0] != sender:
                    self.reached.add("budget waits")
                    break  # others may end, or only its own process can be given the refusal
                self.reached.add("budget refuses")
                self.refused.append(ticket)
                continue
            if not self._tokens_fit(ticket, now):
                self.reached.add("tokens")
                break
            workload = ticket.split(".")[1]
            aged_waits = workload == "i" and self._aged(sender, now)
            self.turn = 0 if workload == "b" else self.turn + aged_waits
            process = ticket.split(".")[0]
            self.unconfirmed[process] = self.unconfirmed.get(process, 0) + 1
            del self.queues[workload][ticket]
            self.slots[ticket] = now + self.limits["lease_ms"]
            self.starts[ticket] = now
            if self.limits["tokens"]:
                self.tokens[ticket] = now, tokens_of(ticket)
            if self.tripped:
                self.probe = ticket
                self.reached.add("probe")
            if self.ramp:
                self.ramp = (self.ramp[0], self.ramp[1] + 1)
            granted.append(ticket)
        return granted

    def _most_unconfirmed(self) -> int:
        share = -(-self.limits["slots"] // len(self.last_seen))
        return max(2, min(share, max(16, -(-share // 16))))

    def _heads(self, sender: str, now: int) -> dict[str, str]:
        heads = {}
        for workload, queue in self.queues.items():
            for ticket, _ in sorted(queue.items(), key=lambda entry: (entry[1], entry[0])):
                if ticket in self.refused:
                    continue
                process = ticket.split(".")[0]
                recent = now - self.last_seen.get(process, -(10**15)) <= self.limits["lease_ms"] / 2
                if (asked := self.asked.get(process, -1)) >= self.last_seen.get(process, 0):
                    recent = recent and now - asked <= self.limits["lease_ms"] / 16
                room = self.unconfirmed.get(process, 0) < self._most_unconfirmed()
                if process == sender or (recent and room and process in self.listening):
                    heads[workload] = ticket
                    break
        return heads

    def _aged(self, sender: str, now: int) -> bool:
        head = self._heads(sender, now).get("b")
        return head is not None and now - self.queues["b"][head] >= self.limits["age_ms"]

    def _batch_has_room(self, now: int) -> bool:
        reserve = min(self.limits["reserve_slots"], self.limits["slots"] - 1)
        held = sum(".b." in ticket for ticket in self.slots)
        if reserve and held >= self.limits["slots"] - reserve:
            return False
        reserve = min(self.limits["reserve_starts"], self.limits["starts"] - 1)
        return not reserve or self.used(now, "b.") < self.limits["starts"] - reserve

    def _next(self, sender: str, now: int) -> str | None:
        heads = self._heads(sender, now)
        if not heads:
            return None
        if now < self.pause_until:
            self.reached.add("pause")
            return None
        if not self._breaker_allows(now):
            return None
        if len(self.slots) >= self.limits["slots"] or self.used(now) >= self.limits["starts"]:
            return None
        batch = "b" in heads and self._batch_has_room(now)
        if "i" in heads and not (batch and self._aged(sender, now) and self.turn >= TURNS - 1):
            return heads["i"]
        if "i" in heads:
            self.reached.add("starved")
        elif "b" in heads and not batch:
            self.reached.add("reserve")
        return heads["b"] if batch else None

    def _budget_allows(self, ticket: str) -> bool:
        if not self.limits["budget"]:
            return True
        held = sum(tokens_of(holder) for holder in self.slots if not holder.startswith("~"))
        return self.spent + held + tokens_of(ticket) <= self.limits["budget"]

    def _tokens_fit(self, ticket: str, now: int) -> bool:
        """One alone always fits: it could never run otherwise."""
        if not self.limits["tokens"]:
            return True
        self.tokens = {other: entry for other, entry in self.tokens.items() if entry[0] > now - self.window}
        there = sum(amount for _, amount in self.tokens.values())
        return there <= 0 or there + tokens_of(ticket) <= self.limits["tokens"]

    def _breaker_allows(self, now: int) -> bool:
        if self.tripped:
            return self.probe not in self.slots and now >= self.probe_at
        return self._ramp_allows(now)

    def _ramp_allows(self, now: int) -> bool:
        if self.ramp is None:
            return True
        began, count = self.ramp
        if now - began >= self.limits["ramp_ms"]:
            self.ramp = None
            return True
        self.reached.add("slow start")
        return count < 1 + (now - began) * self.limits["slots"] // self.limits["ramp_ms"]
