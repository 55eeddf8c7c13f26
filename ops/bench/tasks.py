"""Single requests as Celery tasks: `brimful worker` beside a plain Celery worker with threads and with gevent.

``python ops/bench/tasks.py [--quick]`` takes about four minutes, with ``--quick`` two.

Each contender has a server and a mock gateway of its own, and one worker. A measurement moves a filled queue to the
worker's database, and ends when every result is stored.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from celery import Celery
from peers import pinned_packages
from runs import gateway, run

from brimful_worker.local.server.valkey import Valkey

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
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


FULL = (Load(4, 0.05, 400), Load(16, 0.25, 320), Load(64, 0.5, 640), Load(64, 0.0, 4000))
QUICK = (Load(4, 0.05, 120), Load(16, 0.25, 96), Load(64, 0.5, 256), Load(64, 0.0, 1000))


@dataclass(frozen=True)
class Contender:
    name: str
    queue: str
    task: str
    command: tuple[str, ...]
    packages: str = ""
    """Folder of packages that it needs beside brimful's own."""


PLAIN = (sys.executable, "-m", "celery", "-A", "plain_tasks", "worker", "-l", "WARNING", "-n", "w@plain")


def contenders() -> list[Contender]:
    return [
        Contender("brimful", "interactive", "brimful.sample", (sys.executable, "-m", "brimful.cli", "worker")),
        Contender("Celery, threads", "plain", "plain.sample", (*PLAIN, "-P", "threads")),
        Contender(
            "Celery, gevent",
            "plain",
            "plain.sample",
            (*PLAIN, "-P", "gevent"),
            str(pinned_packages(ROOT / ".bench" / "gevent", "gevent")),
        ),
    ]


@dataclass
class Figures:
    """CPU is user + system."""

    seconds: float
    per_second: float
    worker_ms: float
    """CPU of the worker per task."""
    redis_ms: float
    commands: float
    """Redis commands per task, without the benchmark's own."""


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
            server, before = psutil.Process(self._server.pid), redis.info("commandstats")
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
            commands = _calls(redis.info("commandstats")) - _calls(before)
        return Figures(
            seconds=round(seconds, 3),
            per_second=round(tasks / seconds, 1),
            worker_ms=round(worker_cpu / tasks * 1000, 3),
            redis_ms=round(redis_cpu / tasks * 1000, 3),
            commands=round(commands / tasks, 2),
        )

    def idle(self) -> float:
        """Redis commands a second while there is nothing to do."""
        redis = self.app.backend.client
        time.sleep(2)
        before = _calls(redis.info("commandstats"))
        time.sleep(_IDLE_S)
        return round((_calls(redis.info("commandstats")) - before - 1) / _IDLE_S, 2)


def _calls(stats: dict[str, Any]) -> int:
    """Commands that clients sent; those of scripts count too."""
    return sum(one["calls"] for one in stats.values())


def measure(contender: Contender, loads: tuple[Load, ...], folder: Path) -> dict[str, Any]:
    """One worker per concurrency, one server and one gateway for all."""
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        server = stack.enter_context(Valkey(folder / contender.name.replace(", ", "-")))
        url = stack.enter_context(gateway(slots=None, starts=None, per_token_s=0.0, latency_s=0.0))
        for concurrency in dict.fromkeys(load.concurrency for load in loads):
            mine = [load for load in loads if load.concurrency == concurrency]
            with Worker(contender, server, url, mine[0], folder) as worker:
                worker.measure(2 * concurrency)  # connections and caches
                for load in mine:
                    _set_latency(url, load.latency_s)
                    figures[_name(load)] = asdict(worker.measure(load.tasks))
                    print(f"{contender.name}, {_name(load)}: {figures[_name(load)]}", file=sys.stderr)
                if concurrency == loads[0].concurrency:
                    figures["idle"] = worker.idle()
    return figures


def _name(load: Load) -> str:
    return f"{load.concurrency} x {load.latency_s:g}"


def _set_latency(url: str, seconds: float) -> None:
    body = json.dumps({"latency_s": seconds}).encode()
    urllib.request.urlopen(url.removesuffix("/v1") + "/options", body, timeout=10).close()


def runs_by_concurrency(folder: Path, requests: int) -> dict[str, float]:
    """Seconds of a `brimful run` whose one worker runs 8 or 64 shards at once, after the first start."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Hello {number}"}) + "\n" for number in range(requests)))
    seconds = {}
    for concurrency in (8, 64):
        out = folder / f"run-{concurrency}" / "out.jsonl"
        out.parent.mkdir()
        with gateway(slots=None, starts=None, per_token_s=0.0, latency_s=0.25) as url:
            environment = {"BRIMFUL_SLOTS": "64", "BRIMFUL_STARTS": "0", "BRIMFUL_CONCURRENCY": str(concurrency)}
            arguments = ("--workers", "1", "--max-tokens", "4", "--pack", "off")
            run(prompts, out, url, *arguments, env=environment)
            with urllib.request.urlopen(url.removesuffix("/v1") + "/ledger", timeout=10) as answer:
                ledger = json.load(answer)
        seconds[str(concurrency)] = round(ledger["last_arrival_s"] - ledger["first_arrival_s"] + 0.25, 2)
    return seconds


def document(loads: tuple[Load, ...], figures: dict[str, Any], runs: dict[str, float], requests: int) -> str:
    names = list(figures)
    head = f"| | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}\n"
    lines = []
    for load in loads:
        found = [figures[name][_name(load)] for name in names]
        if load.latency_s:
            cells = [f"{one['seconds']:.2f} s ({one['seconds'] / load.ideal_s:.2f})" for one in found]
            title = f"{load.tasks} tasks of {load.latency_s:g} s, `-c {load.concurrency}`, ideal {load.ideal_s:.1f} s"
            lines.append((title, cells))
            continue
        bound = f"{load.tasks:,} tasks of no length, `-c {load.concurrency}`"
        lines.append((f"{bound}: tasks a second", [f"{one['per_second']:.0f}" for one in found]))
        lines.append(("CPU of the worker a task", [f"{one['worker_ms']:.2f} ms" for one in found]))
        lines.append(("CPU of Redis a task", [f"{one['redis_ms']:.2f} ms" for one in found]))
        lines.append(("Redis commands a task", [f"{one['commands']:.1f}" for one in found]))
    lines.append(("Redis commands a second, idle", [f"{figures[name]['idle']:.1f}" for name in names]))
    table = head + "".join(f"| {title} | {' | '.join(cells)} |\n" for title, cells in lines)
    ideal = requests * 0.25 / 64
    return TEXT.format(table=table, requests=requests, ideal=ideal, eight=runs["8"], sixtyfour=runs["64"])


TEXT = """# Single requests as tasks

One worker and one Valkey; the queue is full before the worker begins, and the time ends with the last stored result. In
brackets: the time by the ideal, which is the tasks' own length. *Celery* is a plain app with Celery's defaults whose
task makes the same request with http.client on open connections; it keeps no limits, retries nothing, and acknowledges
before it begins. brimful's tasks have their events, their STARTED state, late acknowledgement and admission.

{table}
Commands count what scripts call inside Redis too.

`brimful run`, {requests} requests of 0.25 s with 64 slots and one worker, ideal {ideal:.1f} s:
{eight} s with 8 shards at once, {sixtyfour} s with 64.
"""


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    loads, requests = (QUICK, 512) if quick else (FULL, 2048)
    with tempfile.TemporaryDirectory(prefix="brimful-tasks-") as name:
        folder = Path(name)
        figures = {one.name: measure(one, loads, folder) for one in contenders()}
        runs = runs_by_concurrency(folder, requests)
    return {"markdown": document(loads, figures, runs, requests), "figures": {**figures, "runs": runs}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print(main(parser.parse_args().quick)["markdown"])
