"""The parts of a fleet in a storm: a Valkey, worker processes and a gateway, and what each fault does to them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from brimful.limits import default_guard_s
from brimful_worker.local.server.valkey import Valkey
from support.commands import command, environment
from support.pool_worker import Background
from support.rabbitmq import RabbitMQ
from support.refusals import REFUSALS, Refusal
from support.storm.schedule import Event
from support.strict_gateway import StrictGatewayProcess

SLOTS, STARTS, WINDOW_S = 16, 120, 6.0
_STOP_S = 120.0
"""A worker that was sent SIGTERM, or stands still, has ended by then."""


@dataclass(eq=False)
class Worker:
    name: str
    started: Background
    ended_by: str = ""
    """What the storm did to end it; empty while it should live."""
    ending_since: float = 0.0
    code: int | None = None

    @property
    def live(self) -> bool:
        return not self.ended_by


@dataclass
class Machines:
    """``findings``: what went wrong by itself. ``outages``: (from, to, kind) of Redis, on time.monotonic()."""

    directory: Path
    seed: int
    size: int
    """Workers; the storm adds at most one to them."""
    findings: list[str] = field(default_factory=list)
    outages: list[tuple[float, float, str]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    deaths: int = 0
    poison_deaths: int = 0
    extra: int = 0
    rabbitmq: RabbitMQ | None = None
    """The broker, where it is not Redis. The faults of Redis are then also this one's, each in turn."""

    @contextlib.contextmanager
    def running(self, visibility_s: int) -> Iterator[None]:
        self.valkey = Valkey(self.directory / "valkey", appendonly=True, options=("enable-protected-configs yes",))
        with (
            self.valkey,
            StrictGatewayProcess(
                slots=SLOTS, starts=STARTS, window=WINDOW_S, latency=0.3, spread=0.15, seed=self.seed
            ) as self.gateway,
            self.rabbitmq or contextlib.nullcontext(),
        ):
            self.env = environment(
                ACS_API_BASE=self.gateway.url,
                ACS_API_KEY="sk-storm",
                BRIMFUL_REDIS_URL=self.valkey.url,
                BRIMFUL_SLOTS=str(SLOTS),
                BRIMFUL_STARTS=str(STARTS),
                BRIMFUL_WINDOW_S=str(WINDOW_S),
                # As of a whole minute: a loaded machine does not get punctual because the window is short.
                BRIMFUL_GUARD_S=str(default_guard_s(60.0)),
                BRIMFUL_CONCURRENCY="16",
                BRIMFUL_TIMEOUT_S="5",
                BRIMFUL_VISIBILITY_TIMEOUT_S=str(visibility_s),
                **({"BRIMFUL_BROKER_URL": self.rabbitmq.url} if self.rabbitmq else {}),
            )
            self.admin = redis.Redis(
                port=self.valkey.port, decode_responses=True, socket_timeout=5, retry=Retry(NoBackoff(), 0)
            )
            try:
                for _ in range(self.size):
                    self._start_worker()
                for worker in self.workers:
                    worker.started.ready()
                yield
            finally:
                self.admin.close()
                for worker in self.workers:
                    with contextlib.suppress(ProcessLookupError):
                        worker.started.process.kill()
                    worker.started.process.wait()

    def _start_worker(self) -> None:
        name = f"w{len(self.workers) + 1}"
        log = self.directory / f"{name}.log"
        self.workers.append(Worker(name, Background(command("worker", "--name", name), self.env, log)))

    def live(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.live]

    # -- faults

    def apply(self, event: Event) -> Callable[[], object] | None:
        """Do it. Returns what ends it, for a fault that lasts. Commands to Redis may take long: call it in a thread."""
        kind, _, detail = event.kind.partition(": ")
        dice = random.Random(event.number)
        match kind:
            case "kill workers":
                for worker in dice.sample(self.live(), min(len(self.live()), dice.choice((1, 1, 1, 2)))):
                    self.kill(worker)
            case "stop workers":
                for worker in dice.sample(self.live(), min(len(self.live()), 1)):
                    self._end(worker, signal.SIGTERM, "SIGTERM")
            case "freeze a worker":
                # Its guardian kills it. One that only boots has no guardian yet, and no slots.
                ready = [worker for worker in self.live() if "ready." in worker.started.output]
                for worker in dice.sample(ready, min(len(ready), 1)):
                    self._end(worker, signal.SIGSTOP, "frozen")
            case "add a worker":
                self.extra = 1
                self.look()
            case "kill redis" if self.rabbitmq is not None and event.number % 2:
                self.rabbitmq.kill()
                return self._lasting(kind, self.rabbitmq.start)
            case "pause redis" if self.rabbitmq is not None and event.number % 2:
                self.rabbitmq.pause()
                return self._lasting(kind, self.rabbitmq.resume)
            case "kill redis":
                self.valkey.kill()
                return self._lasting(kind, self.valkey.start)
            case "pause redis":
                pid = self.valkey.pid
                os.kill(pid, signal.SIGSTOP)
                return self._lasting(kind, lambda: os.kill(pid, signal.SIGCONT))
            case "cut connections":
                with contextlib.suppress(redis.RedisError):  # no harm if Redis is away
                    self.admin.execute_command("CLIENT", "KILL", "TYPE", dice.choice(("normal", "pubsub")))
            case "refuse":
                refuse: Refusal = REFUSALS[detail]
                with contextlib.suppress(redis.RedisError):
                    refuse(self.admin, True)
                return self._lasting(event.kind, lambda: self._until_done(lambda: refuse(self.admin, False)))
            case "flush redis":
                began = time.monotonic()
                self._until_done(self.admin.flushall)
                self.outages.append((began, time.monotonic(), kind))
            case "provider":
                self.gateway.set_faults(**{detail: dice.choice((0.1, 0.3))})
                return self.gateway.set_faults
            case _:
                raise AssertionError(event.kind)
        return None

    def _lasting(self, kind: str, end: Callable[[], object]) -> Callable[[], object]:
        began = time.monotonic()

        def ended() -> None:
            end()
            self.outages.append((began, time.monotonic(), kind))

        self.outages.append((began, float("inf"), kind))
        return ended

    @staticmethod
    def _until_done(call: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        while True:
            try:
                call()
                return
            except redis.RedisError:
                if time.monotonic() > end:
                    raise

    def kill(self, worker: Worker) -> None:
        self.deaths += 1
        self._end(worker, signal.SIGKILL, "SIGKILL")

    def _end(self, worker: Worker, number: signal.Signals, how: str) -> None:
        worker.ended_by, worker.ending_since = how, time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            worker.started.process.send_signal(number)

    def kill_poisoned(self) -> None:
        """SIGKILL each worker that waits for the answer to a poison: that request ends its worker."""
        if not (ports := set(self.gateway.poisoned_ports())):
            return
        for worker in self.live():
            with contextlib.suppress(psutil.Error):
                connections = psutil.Process(worker.started.process.pid).net_connections("tcp")
                if ports & {connection.laddr.port for connection in connections}:
                    self.poison_deaths += 1
                    self.kill(worker)

    def kill_all(self) -> None:
        """What RabbitMQ has given to workers and they have not acknowledged waits then again."""
        for worker in self.live():
            self.kill(worker)
            worker.started.process.wait()

    def look(self) -> None:
        """Notice workers that have ended, and start others in their places."""
        for worker in self.workers:
            if worker.code is not None:
                continue
            worker.code = worker.started.process.poll()
            if worker.code is None:
                if not worker.live and time.monotonic() - worker.ending_since > _STOP_S:
                    self.findings.append(f"{worker.name} ({worker.ended_by}) has not ended after {_STOP_S:g} s")
                    worker.started.process.kill()
                    worker.ended_by = "SIGKILL"
                continue
            expected = {"SIGKILL": (-9,), "frozen": (-9,), "SIGTERM": (0, 130, -9)}.get(worker.ended_by, ())
            before_its_first_line = worker.code == -signal.SIGTERM and not worker.started.output
            if worker.code not in expected and not before_its_first_line:
                how = f"after {worker.ended_by}" if worker.ended_by else "by itself"
                last = worker.started.output[-1500:]
                self.findings.append(f"{worker.name} ended {how} with exit code {worker.code}: …{last}")
                worker.ended_by = worker.ended_by or "itself"
        while len(self.live()) < self.size + self.extra:
            self._start_worker()

    def was_away(self, begin: float, end: float) -> bool:
        """Whether Redis was disturbed between two times."""
        return any(start <= end and stop >= begin for start, stop, _ in self.outages)

    def flushed(self, begin: float, end: float) -> bool:
        return any(kind == "flush redis" and start <= end and stop >= begin for start, stop, kind in self.outages)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
