"""One contender of tasks.py: its worker process on a server of its own, and what a measurement of it says."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from brimful_worker.local.server.valkey import Valkey

HERE = Path(__file__).parent
_IDLE_S = 10.0
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Load:
    """``tasks`` requests that take ``latency_s`` each, through a worker that runs ``concurrency`` at once."""

    concurrency: int
    latency_s: float
    tasks: int

    @property
    def ideal_s(self) -> float:
        return self.tasks * self.latency_s / self.concurrency


@dataclass(frozen=True)
class Contender:
    name: str
    queue: str
    task: str
    command: tuple[str, ...]
    packages: str = ""
    """Folder of packages that it needs beside brimful's own."""


@dataclass
class Figures:
    """CPU is user + system."""

    seconds: float
    per_second: float
    worker_ms: float
    """CPU of the worker per task."""
    redis_ms: float
    commands: float
    """Redis commands per task, those within scripts too."""
    messages: float
    """What the worker sent to Redis per task: a pipeline is one message."""


class Worker:
    """One contender's worker on its server."""

    def __init__(self, contender: Contender, server: Valkey, url: str, load: Load, folder: Path) -> None:
        self._contender, self._server, self._load, self._url = contender, server, load, url
        self.app = Celery("bench", broker=server.url, backend=server.url, set_as_current=False)
        other = server.url.removesuffix("/0") + "/1"
        self._elsewhere = Celery("bench", broker=other, backend=other, set_as_current=False)
        names = ("BRIMFUL_", "ACS_", "KIOS_", "OPENAI_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, [contender.packages, str(HERE)])),
            "PLAIN_REDIS": server.url,
            "PLAIN_API_BASE": url,
            "BRIMFUL_REDIS_URL": server.url,
            "BRIMFUL_SLOTS": str(max(16, load.concurrency)),
            "BRIMFUL_STARTS": "0",
            "ACS_API_BASE": url,
            "ACS_API_KEY": "sk-bench",
        }
        self._log = (folder / f"{contender.queue}-{load.concurrency}.log").open("ab")
        command = [*contender.command, "-c", str(load.concurrency)]
        self._process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Worker:
        end = time.monotonic() + 60
        while not self.app.control.ping(timeout=0.5):
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the worker of {self._contender.name} did not start: {self._log.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for app in (self.app, self._elsewhere):
            app.close()
        self._log.close()

    def cpu(self) -> float:
        process = psutil.Process(self._process.pid)
        return sum(sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)])

    def measure(self, tasks: int) -> Figures:
        queue, redis = self._contender.queue, self.app.backend.client
        for number in range(tasks):
            self._elsewhere.send_task(
                self._contender.task, kwargs={"prompt": f"Hello {number}", "max_tokens": 4}, queue=queue
            )
        with redis.pubsub() as results:
            results.psubscribe("celery-task-meta-*")
            while not results.get_message(timeout=1.0):
                pass
            server, before = psutil.Process(self._server.pid), _counts(redis)
            worker_cpu, redis_cpu = self.cpu(), sum(server.cpu_times()[:2])
            self._elsewhere.backend.client.move(queue, 0)
            began, left = time.monotonic(), tasks
            while left:
                if time.monotonic() > began + _LIMIT_S:
                    raise SystemExit(f"{self._contender.name}: {left} of {tasks} tasks did not end: {self._log.name}")
                message = results.get_message(timeout=1.0)
                if message and message["type"] == "pmessage":
                    status = json.loads(message["data"])["status"]
                    if status == "FAILURE":
                        raise SystemExit(f"{self._contender.name}: a task failed: {message['data']!r}")
                    left -= status == "SUCCESS"
            seconds = time.monotonic() - began
            time.sleep(0.3)  # the last acknowledgements
            worker_cpu, redis_cpu = self.cpu() - worker_cpu, sum(server.cpu_times()[:2]) - redis_cpu
            commands, messages = (now - then for now, then in zip(_counts(redis), before, strict=True))
        return Figures(
            seconds=round(seconds, 3),
            per_second=round(tasks / seconds, 1),
            worker_ms=round(worker_cpu / tasks * 1000, 3),
            redis_ms=round(redis_cpu / tasks * 1000, 3),
            commands=round(commands / tasks, 2),
            messages=round(messages / tasks, 2),
        )

    def idle(self) -> float:
        """Redis commands a second that the worker sends while there is nothing to do."""
        time.sleep(2)
        end, commands = time.monotonic() + _IDLE_S, 0
        with self.app.backend.client.monitor() as monitor:
            while time.monotonic() < end:  # it asks its queues about every second
                commands += monitor.next_command()["client_type"] != "lua"
        return round(commands / _IDLE_S, 2)


def _counts(redis: Any) -> tuple[int, int]:
    """Commands carried out, those within scripts too; and messages from clients."""
    found = redis.info("everything")
    commands = sum(one["calls"] for name, one in found.items() if name.startswith("cmdstat_"))
    return commands, found["total_reads_processed"]
