"""The scenarios. Each one starts its own client processes on an empty server and returns figures."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from arithmetic import LIMIT, in_use, jain, most_in_window, peak
from contenders import BY_NAME, Entry
from processes import Bench, together


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
    """One slot, two processes that always want it: the time from a release in one to the next grant in the other."""
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
    """Without competition: the median wait for a slot that is free."""
    bench.fresh(entry)
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": 1, "rounds": 200, "hold_s": 0.002}
    waits = [entered - asked for asked, entered, _ in _events(together(bench.clients(entry, spec)))]
    return {"free_ms": statistics.median(waits) * 1000}


def growth(bench: Bench, entry: Entry, waiters: int, processes: int) -> dict[str, Any]:
    """Long holds with growing numbers of waiters and processes: commands per grant."""
    bench.fresh(entry)
    hold_s, seconds = 5.0, bench.sizes.growth_s
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": waiters // processes, "hold_s": hold_s, "spread": 0.5}
    results = together(bench.clients(entry, *[{**spec, "seconds": seconds, "bound_s": seconds}] * processes))
    # Holds that the time bound cut short were granted too: all slots are in use all the time.
    granted = len(_events(results)) + LIMIT
    commands = sum(result["commands"] for result in results)
    return {"waiters": waiters, "processes": processes, "commands": commands / granted}


def share(bench: Bench, entry: Entry) -> dict[str, Any]:
    """Four equal processes that always want more: how evenly they share the grants."""
    bench.fresh(entry)
    seconds = bench.sizes.share_s
    spec = {"kind": "rounds", "slots": LIMIT, "coroutines": 24, "hold_s": 0.05, "spread": 0.5, "seconds": seconds}
    results = together(bench.clients(entry, *[{**spec, "bound_s": seconds}] * 4))
    return {"jain": jain([len(result["events"]) for result in results])}


def rate(bench: Bench, entry: Entry) -> dict[str, Any]:
    """A key with plenty of slots, 3 processes, holds of zero length: grants per second."""
    bench.fresh(entry)
    spec = {"kind": "rounds", "slots": 1000, "coroutines": 100, "hold_s": 0.0, "seconds": bench.sizes.rate_s}
    results = together(bench.clients(entry, *[{**spec, "bound_s": bench.sizes.rate_s + 5}] * 3))
    entered = [event[1] for event in _events(results)]
    return {"grants_s": len(entered) / (max(entered) - min(entered))} if len(entered) > 1 else {"grants_s": 0.0}


def recovery(bench: Bench, entry: Entry) -> dict[str, Any]:
    """A process that holds all 16 slots is killed by SIGKILL: seconds until another one holds all 16."""
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
    """FLUSHALL while 16 are held and 32 wait: the most that are held at the same time afterwards."""
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
    """Three processes want more than ``starts`` per window: the most in any window, and the share that is used."""
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
    """:func:`recovery` of all contenders at the same time, each on its own server: it only waits."""
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
    """:func:`growth` of ours for all of :data:`GROWTH` at the same time, each on its own server: holds are long.

    With no ``benches`` nothing is measured.
    """
    ours = BY_NAME["brimful"]
    with ThreadPoolExecutor(len(GROWTH)) as threads:
        pending = [threads.submit(growth, bench, ours, *size) for bench, size in zip(benches, GROWTH, strict=False)]
    return [future.result() for future in pending]


def measure(bench: Bench, entry: Entry) -> dict[str, Any]:
    """All scenarios that apply to ``entry``. The notes name those that a peer cannot run."""
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
