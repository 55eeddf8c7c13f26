"""Thousands in flight: `brimful run` compared with the Kios page's bare aiohttp script, on the same work.

``python ops/bench --parts thousands`` takes about six minutes, with ``--quick`` one.

A fleet of three workers keeps 6,000 chat requests (the page's own example: three scripts of 2,000) at the mock gateway,
which answers each after 20 s; four waves of them last for more than a minute. The two contenders take turns, and the
figures are means of their rounds: a shared machine is not equally fast in every minute.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from runs import gateway, ledger

HERE = Path(__file__).parent
LOOK_S = 1.0


@dataclass(frozen=True)
class Size:
    in_flight: int = 6000
    processes: int = 3
    latency_s: float = 20.0
    waves: int = 4
    rounds: int = 2
    max_tokens: int = 16

    @property
    def requests(self) -> int:
        return self.in_flight * self.waves


FULL, QUICK = Size(), Size(in_flight=1500, latency_s=5.0, rounds=1)


@dataclass
class Figures:
    """The figures of one contender. CPU is user + system."""

    answered: int = 0
    peak: int = 0
    held: float = 0.0
    """Mean number in flight between the first wave's end and the last arrival."""
    per_second: float = 0.0
    seconds: float = 0.0
    """From the first arrival to the last answer."""
    held_cpu_ms: float = 0.0
    """Per request, of the processes that hold the connections, between the first and the last moment at which the slots
    are full and no request begins or ends."""
    cpu_ms: float = 0.0
    """The same, from the first arrival at the gateway to the end of the processes."""
    held_beside_ms: float = 0.0
    """As ``held_cpu_ms``, of the other processes: Redis, and the command that reads and writes the files."""
    beside_ms: float = 0.0
    """As ``cpu_ms``, of these other processes, with the command's start."""
    rss_mb: int = 0
    """Of the largest of these processes, at the end."""
    connections: int = 0
    """Connections opened in total."""


@dataclass
class Meter:
    """CPU of processes since :meth:`begin`. A process that has ended counts with its last reading."""

    workers: dict[int, float] = field(default_factory=dict)
    beside: dict[int, float] = field(default_factory=dict)
    rss: int = 0
    _before: dict[int, float] = field(default_factory=dict)

    def read(self, root: int) -> None:
        try:
            family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                with process.oneshot():
                    used = sum(process.cpu_times()[:2])
                    place = self.workers if _holds_connections(process.cmdline()) else self.beside
                    place[process.pid] = used
                    if place is self.workers:
                        self.rss = max(self.rss, process.memory_info().rss >> 20)
            except psutil.Error:
                continue

    def ended(self, process: subprocess.Popen[Any]) -> bool:
        """Reap it: only then is all of its own CPU known."""
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            if pid in self.workers:  # the bare script; brimful's workers are children of the command
                self.workers[pid] = usage.ru_utime + usage.ru_stime
        return bool(pid)

    def begin(self) -> None:
        self._before = {**self.workers, **self.beside}

    def used(self, readings: dict[int, float]) -> float:
        return sum(seconds - self._before.get(pid, 0.0) for pid, seconds in readings.items())


def _holds_connections(command: list[str]) -> bool:
    return "worker" in command or any(word.endswith("bare_chat.py") for word in command)


def held_gateway(size: Size) -> AbstractContextManager[str]:
    """A mock gateway without limits that answers each request after ``size.latency_s``; its URL."""
    return gateway(slots=None, starts=None, latency_s=size.latency_s, per_token_s=0.0, models=[])


def watch(url: str, size: Size, processes: list[subprocess.Popen[Any]]) -> Figures:
    """Returns when all have ended."""
    meter, begun = Meter(), False
    full: list[tuple[int, float, float]] = []
    """Arrivals, and CPU of both groups, at moments when the slots are full and no request begins or ends."""
    arrivals = 0
    held: list[tuple[float, int]] = []
    running = list(processes)
    while running:
        for process in running:
            meter.read(process.pid)
        running = [process for process in running if not meter.ended(process)]
        seen = ledger(url)
        if seen["arrivals"] and not begun:
            begun = True
            meter.begin()
        if begun:
            held.append((seen["now_s"], seen["active"]))
        # Between two such moments as many requests began as ended. During a burst, thousands arrive while this samples.
        if seen["arrivals"] == arrivals and seen["active"] > 0.98 * size.in_flight:
            full.append((arrivals, sum(meter.workers.values()), sum(meter.beside.values())))
        arrivals = seen["arrivals"]
        time.sleep(LOOK_S if begun else 0.1)
    if any(process.returncode for process in processes):
        raise SystemExit(f"it ended with {[process.returncode for process in processes]}")
    seen = ledger(url)
    answered = int(seen["statuses"].get("200", 0))
    first, last = seen["first_arrival_s"], seen["last_arrival_s"]
    steady = [active for at, active in held if first + 0.8 * size.latency_s < at < last]
    seconds = last - first + size.latency_s
    if not full or full[0][0] == full[-1][0]:
        raise SystemExit("the slots were not full and quiet at two times: a longer latency or more waves show more")
    arrivals, cpu, beside = (last - first for first, last in zip(full[0], full[-1], strict=True))
    return Figures(
        answered=answered,
        held_cpu_ms=round(cpu / arrivals * 1000, 3),
        held_beside_ms=round(beside / arrivals * 1000, 3),
        peak=seen["peak_active"],
        held=round(sum(steady) / max(1, len(steady))),
        per_second=round(answered / seconds, 1),
        seconds=round(seconds, 1),
        cpu_ms=round(meter.used(meter.workers) / answered * 1000, 3),
        beside_ms=round(meter.used(meter.beside) / answered * 1000, 3),
        rss_mb=meter.rss,
        connections=seen["connections"]["opened"],
    )


def bare(size: Size, prompts: Path, folder: Path) -> Figures:
    with held_gateway(size) as url:
        processes = []
        for place in range(size.processes):
            command = [sys.executable, str(HERE / "bare_chat.py"), str(prompts), "--url", f"{url}/chat/completions"]
            command += ["--share", f"{place}/{size.processes}", "--max-tokens", str(size.max_tokens)]
            command += ["--concurrency", str(size.in_flight // size.processes)]
            with (folder / f"bare-{place}.txt").open("wb") as out:
                processes.append(subprocess.Popen(command, stdout=out, env={**os.environ, "KIOS_API_KEY": "sk-bench"}))
        return watch(url, size, processes)


def brimful(size: Size, prompts: Path, folder: Path) -> Figures:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BRIMFUL_", "KIOS_"))}
    environment |= {
        "KIOS_API_KEY": "sk-bench",
        "BRIMFUL_PROVIDER": "kios",
        "BRIMFUL_SLOTS": str(size.in_flight),
        "BRIMFUL_STARTS": "0",
        "XDG_STATE_HOME": str(folder),
    }
    out = Path(tempfile.mkdtemp(dir=folder)) / "rollouts.jsonl"  # a run that finds its output would resume it
    with held_gateway(size) as url:
        command = [sys.executable, "-m", "brimful.cli", "run", str(prompts), "-o", str(out), "--chat", "--no-progress"]
        command += ["--workers", str(size.processes), "--max-tokens", str(size.max_tokens)]
        process = subprocess.Popen(
            command, env={**environment, "KIOS_API_BASE": url}, stdout=subprocess.DEVNULL, cwd=folder
        )
        found = watch(url, size, [process])
    lines = out.read_bytes().count(b"\n")
    if lines != size.requests:
        raise SystemExit(f"{lines} rollouts of {size.requests}")
    return found


def mean(rounds: list[Figures]) -> Figures:
    """The mean of each figure; whole numbers stay whole."""
    means: dict[str, Any] = {}
    for name, first in asdict(rounds[0]).items():
        value = sum(getattr(one, name) for one in rounds) / len(rounds)
        means[name] = round(value) if isinstance(first, int) else round(value, 3)
    return Figures(**means)


TEXT = """# Thousands in flight

{requests:,} chat requests, {in_flight:,} at once from {processes} processes, at a gateway that answers each after
{latency_s:g} s. *bare* is the script of the Kios page (aiohttp, one session, a semaphore, a gather; no retries, no
limits, nothing kept); brimful is `brimful run` with {processes} workers on one embedded Valkey. They took turns; the
figures are means of {rounds} rounds. CPU is counted while all slots are full, between two moments at which no request
begins or ends.

| | bare script | brimful | ratio |
| --- | --- | --- | --- |
| answered | {bare[answered]:,} | {ours[answered]:,} | |
| most in flight | {bare[peak]:,} | {ours[peak]:,} | |
| in flight, mean until the last start | {bare[held]:,} | {ours[held]:,} | {held:.2f} |
| requests a second | {bare[per_second]} | {ours[per_second]} | {throughput:.2f} |
| CPU per request, of who holds the connections | {bare[held_cpu_ms]} ms | {ours[held_cpu_ms]} ms | {cpu:.2f} |
| CPU per request, Redis, reading and writing files | {bare[held_beside_ms]} ms | {ours[held_beside_ms]} ms | |
| both of these | {bare[held_cpu_ms]} ms | {held_all:.3f} ms | {all_in:.2f} |
| with starting and ending, of who holds the connections | {bare[cpu_ms]} ms | {ours[cpu_ms]} ms | {whole:.2f} |
| with starting and ending, Redis and files | {bare[beside_ms]} ms | {ours[beside_ms]} ms | |
| memory of the largest process | {bare[rss_mb]} MB | {ours[rss_mb]} MB | |
| connections opened | {bare[connections]:,} | {ours[connections]:,} | |
"""


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    size = QUICK if quick else FULL
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory(prefix="brimful-thousands-") as name:
            folder = Path(name)
            prompts = folder / "prompts.jsonl"
            with prompts.open("w", encoding="utf-8") as file:
                for place in range(size.requests):
                    file.write(json.dumps({"id": str(place), "prompt": f"Summarize article {place}."}) + "\n")
            turns = [(bare(size, prompts, folder), brimful(size, prompts, folder)) for _ in range(size.rounds)]
            contenders = {"bare": mean([one for one, _ in turns]), "ours": mean([one for _, one in turns])}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    figures = {name: asdict(one) for name, one in contenders.items()}
    held_all = figures["ours"]["held_cpu_ms"] + figures["ours"]["held_beside_ms"]
    ratios = {
        "all_in": held_all / figures["bare"]["held_cpu_ms"],
        "held": figures["ours"]["held"] / max(1, figures["bare"]["held"]),
        "throughput": figures["ours"]["per_second"] / figures["bare"]["per_second"],
        "cpu": figures["ours"]["held_cpu_ms"] / figures["bare"]["held_cpu_ms"],
        "whole": figures["ours"]["cpu_ms"] / figures["bare"]["cpu_ms"],
    }
    text = TEXT.format(**asdict(size), requests=size.requests, held_all=held_all, **figures, **ratios)
    return {"markdown": text, "figures": {**figures, **ratios}}
