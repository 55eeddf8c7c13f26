"""Single requests as Celery tasks: `brimful worker` beside a plain Celery worker with threads and with gevent.

``python ops/bench --parts tasks`` takes about ten minutes, with ``--quick`` three.

Each contender has a server of its own and one worker; the mock gateway serves them in turn. A measurement moves a
filled queue to the worker's database, and ends when every result is stored. The contenders take turns, and the figures
are medians of their rounds: a shared machine is not equally fast in every minute.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from peers import pinned_packages
from runs import gateway, run
from task_worker import Contender, Figures, Load, Worker

from brimful_worker.local.server.valkey import Valkey

ROOT = Path(__file__).parents[2]
FULL = (Load(4, 0.05, 400), Load(16, 0.25, 320), Load(64, 0.5, 640), Load(64, 0.0, 3000))
QUICK = (Load(4, 0.05, 120), Load(16, 0.25, 96), Load(64, 0.5, 256), Load(64, 0.0, 1000))
ROUNDS = 5


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


def measure(entries: list[Contender], loads: tuple[Load, ...], folder: Path, rounds: int) -> dict[str, Any]:
    """The medians of each contender's rounds, by its name and then the load's."""
    figures: dict[str, Any] = {one.name: {} for one in entries}
    with ExitStack() as stack:
        url = stack.enter_context(gateway(slots=None, starts=None, per_token_s=0.0, latency_s=0.0))
        servers = [stack.enter_context(Valkey(folder / str(place))) for place, _ in enumerate(entries)]
        for concurrency in dict.fromkeys(load.concurrency for load in loads):
            mine = [load for load in loads if load.concurrency == concurrency]
            with ExitStack() as running:
                workers = [
                    running.enter_context(Worker(entry, server, url, mine[0], folder))
                    for entry, server in zip(entries, servers, strict=True)
                ]
                _set_latency(url, 0.0)
                for worker in workers:
                    worker.measure(4 * concurrency)  # connections and caches
                for load in mine:
                    _set_latency(url, load.latency_s)
                    turns = [[worker.measure(load.tasks) for worker in workers] for _ in range(rounds)]
                    for entry, found in zip(entries, zip(*turns, strict=True), strict=True):
                        figures[entry.name][_name(load)] = _medians(found)
                        print(f"{entry.name}, {_name(load)}: {figures[entry.name][_name(load)]}", file=sys.stderr)
                if concurrency == loads[0].concurrency:
                    for entry, worker in zip(entries, workers, strict=True):
                        figures[entry.name]["idle"] = worker.idle()
    return figures


def _medians(rounds: Sequence[Figures]) -> dict[str, float]:
    return {name: round(median(getattr(one, name) for one in rounds), 3) for name in asdict(rounds[0])}


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


def document(
    loads: tuple[Load, ...], figures: dict[str, Any], runs: dict[str, float], requests: int, rounds: int, busy: float
) -> str:
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
        lines.append(("messages to Redis a task", [f"{one['messages']:.1f}" for one in found]))
        lines.append(("commands in Redis a task, in scripts too", [f"{one['commands']:.1f}" for one in found]))
    lines.append(("commands to Redis a second, idle", [f"{figures[name]['idle']:.1f}" for name in names]))
    table = head + "".join(f"| {title} | {' | '.join(cells)} |\n" for title, cells in lines)
    ideal = requests * 0.25 / 64
    more = {"requests": requests, "ideal": ideal, "eight": runs["8"], "sixtyfour": runs["64"]}
    return TEXT.format(table=table, rounds=rounds, busy=busy, **more)


TEXT = """# Single requests as tasks

One worker and one Valkey a contender; the queue is full before the worker begins, and the time ends with the last
stored result. The contenders took turns; the figures are medians of {rounds} rounds. In brackets: the time by the
ideal, which is the tasks' own length. *Celery* is a plain app with Celery's defaults whose task makes the same request
with http.client on open connections; it keeps no limits, retries nothing, acknowledges before it begins, and sends no
events. brimful's tasks have their events, their STARTED state, late acknowledgement, a claim and admission.

{table}
The machine's load when it began was {busy:.1f}.

Where brimful's time goes at the bound, of what the interpreter does for a task (py-spy, an earlier run): admission 20
%, Celery's receiving and dispatching 17 %, taking messages and noting them 16 %, Celery's tracer 11 %, checking the
request and making its outcome 10 %, HTTP 9 %, events 6 %, results and claims 6 %, acknowledging 3 %. A worker that is
not busy has less to send together: with few tasks at once its messages to Redis, and the processor time for them, are
those of a plain worker or more.

`brimful run`, {requests} requests of 0.25 s with 64 slots and one worker, ideal {ideal:.1f} s:
{eight} s with 8 shards at once, {sixtyfour} s with 64.
"""


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    loads, requests, rounds = (QUICK, 512, 3) if quick else (FULL, 2048, ROUNDS)
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="brimful-tasks-") as name:
        folder = Path(name)
        figures = measure(contenders(), loads, folder, rounds)
        runs = runs_by_concurrency(folder, requests)
    text = document(loads, figures, runs, requests, rounds, busy)
    return {"markdown": text, "figures": {**figures, "runs": runs}}
