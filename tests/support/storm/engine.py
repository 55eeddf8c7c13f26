"""Runs a schedule: faults and requests at their times, then the calm, then the audits."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import redis

from brimful.errors import RedisUnreachable
from support.rabbitmq import RabbitMQ
from support.storm import audits
from support.storm.machines import SLOTS, STARTS, WINDOW_S, Machines, say
from support.storm.runs import Runner, pick
from support.storm.schedule import SERVER, Event, Schedule
from support.storm.singles import Singles

_TICK_S = 0.05
_RUN_S = 180.0
"""For the last runs to be complete, once the storm is over."""


class Storm:
    """One storm. ``directory`` keeps its files: logs, inputs, outputs, Valkey's data."""

    def __init__(
        self, schedule: Schedule, *, workers: int, visibility_s: int, lines: int, rabbitmq: bool = False
    ) -> None:
        self._schedule = schedule
        self._visibility_s = visibility_s
        self._lines = lines
        self._directory = Path(tempfile.mkdtemp(prefix=f"storm-{schedule.seed}-"))
        broker = RabbitMQ(self._directory / "rabbitmq") if rabbitmq else None
        self._machines = Machines(self._directory, schedule.seed, workers, rabbitmq=broker)
        self._done: Counter[str] = Counter()
        # Valkey ends with the thread that started it.
        self._server = ThreadPoolExecutor(1)
        self._cutter = ThreadPoolExecutor(1)

    def run(self) -> list[str]:
        """The findings of all audits; empty if everything held."""
        say(f"{self._schedule}\nfiles: {self._directory}")
        with self._machines.running(self._visibility_s):
            os.environ["BRIMFUL_REDIS_URL"] = self._machines.valkey.url
            os.environ["BRIMFUL_VISIBILITY_TIMEOUT_S"] = str(self._visibility_s)
            if self._machines.rabbitmq is not None:
                os.environ["BRIMFUL_BROKER_URL"] = self._machines.rabbitmq.url
            runners = [
                Runner(self._machines, "plain", self._lines, "--pack", "off"),
                Runner(self._machines, "packed", 10 * self._lines, "--pack", "8"),
            ]
            with Singles(self._machines, self._machines.valkey.url) as singles:
                for runner in runners:
                    runner.start()
                self._blow(runners, singles)
                calm_at = time.monotonic()
                findings = self._settle(runners, singles, calm_at)
                findings += self._audit(singles, calm_at)
            self._report(runners, singles, calm_at)
        return findings

    def _blow(self, runners: list[Runner], singles: Singles) -> None:
        begin = time.monotonic()
        order = itertools.count()
        todo: list[tuple[float, int, Callable[[], object]]] = []

        def at(moment: float, do: Callable[[], object]) -> None:
            heapq.heappush(todo, (moment, next(order), do))

        def fault(event: Event) -> None:
            self._done[event.kind] += 1
            if event.kind == "poison":
                singles.poison()
            elif event.kind == "malformed messages":
                singles.malform(event)
            elif event.kind.endswith(("output", "submitter")):
                pick(runners, event).apply(event)
            elif event.kind.startswith(SERVER):
                self._server.submit(self._disturb_server, event, singles)
            elif event.kind == "cut connections":
                self._cutter.submit(self._machines.apply, event)
            elif (end := self._machines.apply(event)) is not None:
                at(time.monotonic() - begin + event.lasts, end)

        for event in self._schedule.requests:
            at(event.at, partial(singles.send, event))
        for event in self._schedule.faults:
            at(event.at, partial(fault, event))
        look_at = 0.0
        while todo or time.monotonic() - begin < self._schedule.seconds:
            now = time.monotonic() - begin
            while todo and todo[0][0] <= now:
                heapq.heappop(todo)[2]()
            if now >= look_at:
                self._watch()
                look_at = now + 0.25
            time.sleep(_TICK_S)
        self._server.submit(lambda: None).result()  # the last fault of Redis is over

    def _disturb_server(self, event: Event, singles: Singles) -> None:
        """From its begin to its end, on the one thread of all of these."""
        try:
            with singles.flushing() if event.kind == "flush redis" else contextlib.nullcontext():
                end = self._machines.apply(event)
            if end is not None:
                time.sleep(event.lasts)
                end()
        except Exception as error:
            self._machines.findings.append(f"the storm could not {event.kind}: {error!r}")

    def _watch(self) -> None:
        self._machines.look()
        self._machines.kill_poisoned()

    def _settle(self, runners: list[Runner], singles: Singles, calm_at: float) -> list[str]:
        """Wait until nothing is under way, or nothing changes any more."""
        for runner in runners:
            runner.finish()
        end = time.monotonic() + _RUN_S
        while time.monotonic() < end:
            self._watch()
            gone = audits.lost_by_flush(singles.sent, self._machines, calm_at)
            if len(singles.waiting()) == len(gone) and not any(runner.busy for runner in runners) and not self._left():
                break
            time.sleep(0.25)
        return [finding for runner in runners for finding in runner.end()]

    def _left(self) -> list[str]:
        try:
            return [*audits.queues(self._machines), *audits.leases(self._machines.admin)]
        except (redis.RedisError, RedisUnreachable) as error:
            return [str(error)]

    def _audit(self, singles: Singles, calm_at: float) -> list[str]:
        machines = self._machines
        machines.look()
        left = [*audits.limits(machines), *self._left()]
        if machines.rabbitmq is not None:
            machines.kill_all()
            left += audits.queues(machines)
        return [
            *machines.findings,
            *left,
            *audits.singles(singles.sent, machines, calm_at),
            *audits.dead_letters(machines.admin, singles.malformed, singles.tried),
        ]

    def _report(self, runners: list[Runner], singles: Singles, calm_at: float) -> None:
        machines, ledger = self._machines, self._machines.gateway.ledger()
        accepted = [single for single in singles.sent if single.accepted]
        exits = sum((runner.exits for runner in runners), Counter())
        say(
            "\n".join(
                [
                    f"faults: {_counted(self._done)}",
                    f"workers: {len(machines.workers)} started, {machines.deaths} killed "
                    f"({machines.poison_deaths} by a poison); ended {_counted(w.ended_by for w in machines.workers)}",
                    f"gateway: {ledger['arrivals']} starts, at most {ledger['most_in_window']} of {STARTS} in "
                    f"{WINDOW_S:g} s and {ledger['peak_active']} of {SLOTS} active; faults {ledger['faulted']}",
                    f"runs: {sum(runner.finished for runner in runners)} complete, "
                    f"{sum(runner.rollouts for runner in runners)} rollouts, exit codes {_counted(exits)}, "
                    f"{sum(runner.failed_lines for runner in runners)} lines failed and retried",
                    f"singles: {len(accepted)} asked for, {len(singles.sent) - len(accepted)} refused to their sender, "
                    f"ended {_counted(single.state or 'without result' for single in accepted)}, "
                    f"failures {_counted(single.cause for single in accepted if single.cause)}",
                    f"lost by a flush: {len(audits.lost_by_flush(singles.sent, machines, calm_at))}",
                    f"calm after {time.monotonic() - calm_at:.0f} s",
                ]
            )
        )


def _counted(items: Iterable[object] | Counter[Any]) -> str:
    return ", ".join(f"{count} × {item}" for item, count in Counter(items).most_common()) or "none"
