"""What is measured. Each scenario starts its own client processes on an empty server and returns figures."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from contenders import BY_NAME, Entry

LIMIT = 16
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sizes:
    """How much is done. ``wide`` is the crowd; all times are seconds."""

    rounds: int = 4
    wide: int = 400
    wide_hold_s: float = 0.5
    handoff_s: float = 4.0
    rate_s: float = 3.0
    recovery_bound_s: float = 45.0
    memory_hold_s: float = 3.0
    window_s: float = 2.0
    window_starts: int = 60
    windows: int = 5
    growth_s: float = 25.0
    share_s: float = 4.0


FULL = Sizes()
QUICK = Sizes(
    rounds=2,
    wide=200,
    wide_hold_s=0.15,
    handoff_s=1.5,
    rate_s=1.0,
    share_s=2.0,
    recovery_bound_s=15.0,
    memory_hold_s=1.2,
    windows=2,
    growth_s=10.0,
)


@dataclass
class Bench:
    """Where clients run: the server's URL and one Python for ours, one for the peers'."""

    url: str
    ours: str
    peers: str
    sizes: Sizes
    notes: list[str] = field(default_factory=list)

    def fresh(self, entry: Entry) -> None:
        """An empty server. For ours it is vouched for, as a fleet does with a server that it has started itself."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
            if entry.ours:
                from brimful_worker.admission import bless

                bless(client, "bench")

    def clients(self, entry: Entry, *specs: dict[str, Any]) -> list[Client]:
        started = [Client(self.ours if entry.ours else self.peers, entry, self.url, spec) for spec in specs]
        for client in started:
            client.expect("ready")
        return started

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()


class Client:
    """A client process; ended by its own handle."""

    def __init__(self, python: str, entry: Entry, url: str, spec: dict[str, Any]) -> None:
        spec = {"bound_s": 60.0, **spec, "limiter": entry.name, "url": url}
        self.process = subprocess.Popen(
            [python, str(_HERE / "client.py"), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != word:
            self.process.kill()
            _, errors = self.process.communicate()
            raise RuntimeError(f"expected {word!r}, got {line!r}: {errors.strip().splitlines()[-1:]}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def result(self, timeout: float = 120.0) -> dict[str, Any]:
        try:
            out, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"no result: {errors.strip().splitlines()[-1:]}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def together(clients: Sequence[Client]) -> list[dict[str, Any]]:
    for client in clients:
        client.go()
    return [client.result() for client in clients]


def peak(events: Sequence[Sequence[float]]) -> int:
    """Most holds at one moment, from [asked, in, out]; an end comes before a beginning of the same instant."""
    changes = sorted([(entered, 1) for _, entered, _ in events] + [(out, -1) for _, _, out in events])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def most_in_window(starts: Sequence[float], window_s: float) -> int:
    """Most starts in any half-open window."""
    ordered = sorted(starts)
    most = first = 0
    for last, start in enumerate(ordered):
        while start - ordered[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def in_use(events: Sequence[Sequence[float]]) -> float:
    """Held slot-seconds of what the limit allows, from the first grant to the last: as long as somebody waits."""
    begun, ended = min(event[1] for event in events), max(event[1] for event in events)
    held = sum(min(out, ended) - entered for _, entered, out in events)
    return held / (LIMIT * (ended - begun))


def jain(counts: Sequence[int]) -> float:
    """Fairness: 1 = everybody got the same, 1/n = one got all."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)


def _events(results: Sequence[dict[str, Any]]) -> list[list[float]]:
    return [event for result in results for event in result["events"]]


def crowd(bench: Bench, entry: Entry, waiters: int, hold_s: float, rounds: int, suffix: str) -> dict[str, Any]:
    """``waiters`` in 4 processes around 16 slots: commands per grant, longest wait against first come, first served."""
    bench.fresh(entry)
    spec = {
        "kind": "rounds",
        "slots": LIMIT,
        "coroutines": waiters // 4,
        "rounds": rounds,
        "hold_s": hold_s,
        "spread": 0.5,
    }
    ideal_s = waiters * rounds * hold_s / LIMIT
    results = together(bench.clients(entry, *[{**spec, "bound_s": ideal_s * 3 + 2}] * 4))
    events = _events(results)
    ideal_wait = (waiters / LIMIT - 1) * hold_s
    figures: dict[str, Any] = {
        f"commands_{suffix}": sum(result["commands"] for result in results) / max(1, len(events)),
        f"in_use_{suffix}": in_use(events),
        f"wait_{suffix}": max(entered - asked for asked, entered, _ in events) / ideal_wait,
        f"peak_{suffix}": peak(events),
    }
    if unfinished := sum(result["unfinished"] for result in results):
        bench.notes.append(f"{entry.name}: {unfinished} of {waiters} waiters were not served within the bound.")
        figures[f"wait_{suffix}"] = None
    return figures


def handoff(bench: Bench, entry: Entry) -> dict[str, Any]:
    """One slot, two processes that both want it always: from a release in one to the next entry in the other."""
    bench.fresh(entry)
    spec = {"kind": "rounds", "slots": 1, "coroutines": 2, "hold_s": 0.005, "seconds": bench.sizes.handoff_s}
    results = together(bench.clients(entry, *[{**spec, "bound_s": bench.sizes.handoff_s + 5}] * 2))
    holds = sorted(
        (entered, out, owner) for owner, result in enumerate(results) for _, entered, out in result["events"]
    )
    gaps = [
        later[0] - earlier[1]
        for earlier, later in itertools.pairwise(holds)
        if later[2] != earlier[2] and later[0] >= earlier[1]
    ]
    return {"handoff_ms": statistics.median(gaps) * 1000 if len(gaps) >= 5 else None, "handoffs": len(gaps)}


def free_slot(bench: Bench, entry: Entry) -> dict[str, Any]:
    """Nobody else there: the median wait for a slot that is free."""
    bench.fresh(entry)
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": 1, "rounds": 200, "hold_s": 0.002}
    waits = [entered - asked for asked, entered, _ in _events(together(bench.clients(entry, spec)))]
    return {"free_ms": statistics.median(waits) * 1000}


def growth(bench: Bench, entry: Entry, waiters: int, processes: int) -> dict[str, Any]:
    """Long holds, ever more waiters and processes: commands per grant."""
    bench.fresh(entry)
    hold_s, seconds = 5.0, bench.sizes.growth_s
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": waiters // processes, "hold_s": hold_s, "spread": 0.5}
    results = together(bench.clients(entry, *[{**spec, "seconds": seconds, "bound_s": seconds}] * processes))
    # Holds that the bound cut short were granted too: all slots are in use all the time.
    granted = len(_events(results)) + LIMIT
    commands = sum(result["commands"] for result in results)
    return {"waiters": waiters, "processes": processes, "commands": commands / granted}


def share(bench: Bench, entry: Entry) -> dict[str, Any]:
    """Four equal processes that always want more: how evenly the grants are shared."""
    bench.fresh(entry)
    seconds = bench.sizes.share_s
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": 24, "hold_s": 0.05, "spread": 0.5, "seconds": seconds}
    results = together(bench.clients(entry, *[{**spec, "bound_s": seconds}] * 4))
    return {"jain": jain([len(result["events"]) for result in results])}


def rate(bench: Bench, entry: Entry) -> dict[str, Any]:
    """A key with plenty of slots, 3 processes, holds of no length: grants per second."""
    bench.fresh(entry)
    spec = {"kind": "rounds", "slots": 1000, "coroutines": 100, "hold_s": 0.0, "seconds": bench.sizes.rate_s}
    results = together(bench.clients(entry, *[{**spec, "bound_s": bench.sizes.rate_s + 5}] * 3))
    entered = [event[1] for event in _events(results)]
    return {"grants_s": len(entered) / (max(entered) - min(entered))} if len(entered) > 1 else {"grants_s": 0.0}


def recovery(bench: Bench, entry: Entry) -> dict[str, Any]:
    """A process holds all 16 and is killed by SIGKILL: seconds until another one holds all 16."""
    bench.fresh(entry)
    bound = bench.sizes.recovery_bound_s
    holder, heir = bench.clients(
        entry,
        {"kind": "fill", "slots": LIMIT, "coroutines": LIMIT, "hold_s": 600.0, "bound_s": 600.0, "keep": True},
        {"kind": "fill", "slots": LIMIT, "coroutines": LIMIT, "hold_s": 600.0, "bound_s": bound},
    )
    try:
        holder.go()
        holder.expect("full")
        heir.go()
        killed = time.monotonic()
        holder.kill()
        full_at = heir.result(bound + 30)["full_at"]
    finally:
        for client in (holder, heir):
            if client.process.poll() is None:
                client.kill()
    return {"recovery_s": None if full_at is None else full_at - killed, "recovery_bound_s": bound}


def memory(bench: Bench, entry: Entry) -> dict[str, Any]:
    """FLUSHALL while 16 are held and 32 wait: the most that are then held at once."""
    bench.fresh(entry)
    hold_s = bench.sizes.memory_hold_s
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": 24, "hold_s": hold_s, "seconds": 2 * hold_s}
    clients = bench.clients(entry, *[{**spec, "bound_s": 4 * hold_s + 6}] * 2)
    for client in clients:
        client.go()
    time.sleep(hold_s / 2)
    bench.flush()
    results = [client.result() for client in clients]
    return {"memory_peak": peak(_events(results)), "memory_errors": sum(result["errors"] for result in results)}


def window(bench: Bench, entry: Entry) -> dict[str, Any]:
    """Three processes want more than ``starts`` in a window allows: the most in any window, and how much is used."""
    bench.fresh(entry)
    sizes = bench.sizes
    seconds = sizes.window_s * sizes.windows
    spec = {
        "kind": "rounds",
        "starts": sizes.window_starts,
        "window_s": sizes.window_s,
        "coroutines": 30,
        "hold_s": 0.01,
        "seconds": seconds,
        "bound_s": seconds + 0.5,
    }
    results = together(bench.clients(entry, *[spec] * 3))
    starts = [event[1] for event in _events(results)]
    after_fill = (len(starts) - sizes.window_starts) / (max(starts) - min(starts))
    return {
        "window_most": most_in_window(starts, sizes.window_s),
        "window_used": after_fill / (sizes.window_starts / sizes.window_s),
        "window_starts": sizes.window_starts,
        "window_s": sizes.window_s,
    }


def recoveries(benches: dict[str, Bench]) -> dict[str, dict[str, Any]]:
    """:func:`recovery` of all at once, each on a server of its own: it is only waiting."""
    entries = [BY_NAME[name] for name in benches]
    with ThreadPoolExecutor(len(entries)) as threads:
        pending = {entry.name: threads.submit(recovery, benches[entry.name], entry) for entry in entries}
    figures: dict[str, dict[str, Any]] = {}
    for name, future in pending.items():
        try:
            figures[name] = future.result()
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            benches[name].notes.append(f"{name}, recovery: {str(error)[:160]}")
            figures[name] = {}
    return figures


GROWTH = ((24, 4), (400, 4), (4000, 4), (400, 1), (400, 16))


def growths(benches: Sequence[Bench]) -> list[dict[str, Any]]:
    """:func:`growth` of ours at all of :data:`GROWTH` at once, each on a server of its own: holds are long.

    ``benches`` may be empty: nothing is measured then.
    """
    ours = BY_NAME["brimful"]
    with ThreadPoolExecutor(len(GROWTH)) as threads:
        pending = [threads.submit(growth, bench, ours, *size) for bench, size in zip(benches, GROWTH, strict=False)]
    return [future.result() for future in pending]


def measure(bench: Bench, entry: Entry) -> dict[str, Any]:
    """All that applies to ``entry``. A scenario that a peer cannot run is told in the notes."""
    sizes = bench.sizes
    plan: list[tuple[str, Any]] = []
    if "slots" in entry.limits:
        plan += [
            ("96 waiters", lambda: crowd(bench, entry, 96, 0.2, sizes.rounds, "96")),
            (f"{sizes.wide} waiters", lambda: crowd(bench, entry, sizes.wide, sizes.wide_hold_s, 1, "wide")),
            ("free slot", lambda: free_slot(bench, entry)),
            ("handoff", lambda: handoff(bench, entry)),
            ("rate", lambda: rate(bench, entry)),
            ("fairness", lambda: share(bench, entry)),
            ("memory", lambda: memory(bench, entry)),
        ]
    if "starts" in entry.limits:
        plan.append(("window", lambda: window(bench, entry)))
    figures: dict[str, Any] = {}
    for name, run in plan:
        since = time.monotonic()
        try:
            figures |= run()
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            bench.notes.append(f"{entry.name}, {name}: {str(error)[:160]}")
        print(f"  {entry.name}: {name} ({time.monotonic() - since:.1f} s)", file=sys.stderr, flush=True)
    return figures
