"""The limiter beside public ones: 10 starts in 1 s, 16 slots, with Redis near and a round trip of 20 ms away.

``python ops/bench --parts limiter`` takes about three minutes. Bottleneck needs node and npm; without
them it is left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from arithmetic import in_use, most_in_window, peak
from contenders import AIOLIMITER, BOTTLENECK, BY_NAME, LIMITER, Entry
from peers import REQUIREMENTS, installed, node_packages, python_with
from processes import Client, together
from rtt import far

from brimful_worker.admission import mark_clean
from brimful_worker.local.server.valkey import Valkey

ROOT = Path(__file__).parents[2]
RTTS_MS = (0, 20)
STARTS, WINDOW_S = 10, 1.0
LONG_STARTS, LONG_S = 30, 10.0
"""The second window of the row with two."""
PROCESSES = 3
SLOTS, WAITERS, HOLD_S, ROUNDS = 16, 96, 0.2, 2
ENTRIES = (LIMITER, BY_NAME["pyrate-limiter"], BY_NAME["async-redis-rate-limiters"], BOTTLENECK, AIOLIMITER)
TAGS = ("bench", f"bench:{WINDOW_S:g}s")


class Place:
    """One contender's server, near and behind a proxy, and how its clients are started."""

    def __init__(self, entry: Entry, port: int, urls: dict[int, str]) -> None:
        self.entry, self.port, self.urls = entry, port, urls
        if entry is BOTTLENECK:
            packages = node_packages(ROOT / ".bench" / "node")
            self.command = ["node", str(Path(__file__).with_name("bottleneck_client.js"))]
            self.environment = {"NODE_PATH": str(packages)}
        else:
            python = sys.executable if entry.ours else str(python_with(REQUIREMENTS, ROOT / ".bench" / "venv"))
            self.command = [python, str(Path(__file__).with_name("client.py"))]
            self.environment = {}

    def run(self, rtt_ms: int, count: int, **spec: Any) -> list[dict[str, Any]]:
        with redis.Redis(port=self.port) as client:
            client.flushall()
            for tag in TAGS if self.entry.ours else ():
                mark_clean(client, tag)
        spec = {"kind": "rounds", **spec}
        clients = [
            Client(self.command, self.entry.name, self.urls[rtt_ms], spec, self.environment)
            for _ in range(self.entry.processes or count)
        ]
        for one in clients:
            one.expect("ready")
        return together(clients)


def starts(place: Place, rtt_ms: int, seconds: float) -> dict[str, Any]:
    """Processes that always want more: most starts in any window, rate after the first fill, commands for each."""
    spec = {"starts": STARTS, "window_s": WINDOW_S, "coroutines": 10, "hold_s": 0.01, "seconds": seconds}
    results = place.run(rtt_ms, PROCESSES, bound_s=seconds + 0.5, **spec)
    begun = [event[1] for result in results for event in result["events"]]
    rate = (len(begun) - STARTS) / (max(begun) - min(begun))
    return {
        "most": most_in_window(begun, WINDOW_S),
        "rate": rate / (STARTS / WINDOW_S),
        "commands": sum(result["commands"] for result in results) / len(begun),
    }


def two_windows(place: Place, rtt_ms: int, seconds: float) -> dict[str, Any]:
    """The same with a second, longer window: the most in each, and the rate that the longer one allows."""
    windows = [[STARTS, WINDOW_S], [LONG_STARTS, LONG_S]]
    spec = {"windows": windows, "coroutines": 10, "hold_s": 0.01, "seconds": seconds, "bound_s": seconds + 0.5}
    results = place.run(rtt_ms, PROCESSES, **spec)
    begun = [event[1] for result in results for event in result["events"]]
    rate = (len(begun) - LONG_STARTS) / (max(begun) - min(begun))
    return {
        "most": most_in_window(begun, WINDOW_S),
        "most_long": most_in_window(begun, LONG_S),
        "rate": rate / (LONG_STARTS / LONG_S),
        "commands": sum(result["commands"] for result in results) / len(begun),
    }


def slots(place: Place, rtt_ms: int) -> dict[str, Any]:
    """96 coroutines in 4 processes around 16 slots: how full they are, the longest wait, commands for each grant."""
    ideal_s = WAITERS * ROUNDS * HOLD_S / SLOTS
    spec = {"slots": SLOTS, "coroutines": WAITERS // 4, "rounds": ROUNDS, "hold_s": HOLD_S, "spread": 0.5}
    results = place.run(rtt_ms, 4, bound_s=ideal_s * 4 + 5, **spec)
    events = [event for result in results for event in result["events"]]
    return {
        "in_use": in_use(events),
        "wait": max(entered - asked for asked, entered, _ in events) / ((WAITERS / SLOTS - 1) * HOLD_S),
        "peak": peak(events),
        "commands": sum(result["commands"] for result in results) / len(events),
        "unfinished": sum(result["unfinished"] for result in results),
    }


def measure(quick: bool) -> dict[str, dict[str, Any]]:
    seconds = 6.0 if quick else 10.0
    found: dict[str, dict[str, Any]] = {}
    for entry in ENTRIES:
        if entry is BOTTLENECK and not (shutil.which("node") and shutil.which("npm")):
            continue
        with tempfile.TemporaryDirectory(prefix="brimful-bench-") as folder, Valkey(Path(folder)) as server:
            port = int(server.url.rsplit(":", 1)[1].split("/")[0])
            with far(port, (20,)) as proxies:
                place = Place(entry, port, {0: server.url, **proxies})
                found[entry.name] = _cells(place, seconds)
        print(f"  {entry.name}", file=sys.stderr, flush=True)
    return found


def _cells(place: Place, seconds: float) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    rtts = RTTS_MS if place.entry.processes is None else (0,)  # one process needs no Redis
    for rtt in rtts:
        if "starts" in place.entry.limits:
            cells[f"starts {rtt}"] = starts(place, rtt, seconds)
        if "slots" in place.entry.limits:
            cells[f"slots {rtt}"] = slots(place, rtt)
        if place.entry.several:
            cells[f"windows {rtt}"] = two_windows(place, rtt, 2.5 * LONG_S)
    return cells


_ROWS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "starts": (
        ("most", f"most starts in any {WINDOW_S:g} s, of {STARTS}", "{:.0f}"),
        ("rate", "rate kept", "{:.0%}"),
        ("commands", "commands a start", "{:.1f}"),
    ),
    "windows": (
        ("most", f"most starts in any {WINDOW_S:g} s, of {STARTS}", "{:.0f}"),
        ("most_long", f"most starts in any {LONG_S:g} s, of {LONG_STARTS}", "{:.0f}"),
        ("rate", "rate kept", "{:.0%}"),
        ("commands", "commands a start", "{:.1f}"),
    ),
    "slots": (
        ("in_use", "slots in use while some wait", "{:.0%}"),
        ("wait", "longest wait ÷ ideal", "{:.2f}"),
        ("peak", f"peak held, of {SLOTS}", "{:.0f}"),
        ("commands", "commands a grant", "{:.1f}"),
    ),
}
_TITLES = {
    "starts": f"{STARTS} starts in {WINDOW_S:g} s",
    "windows": f"{STARTS} in {WINDOW_S:g} s and {LONG_STARTS} in {LONG_S:g} s",
    "slots": f"{SLOTS} slots",
}


def document(found: dict[str, dict[str, Any]], versions: Sequence[str]) -> str:
    parts = [_ABOVE]
    for kind, rows in _ROWS.items():
        names = [name for name, cells in found.items() if any(cell.startswith(f"{kind} ") for cell in cells)]
        shown = [f"**{name}**" if name == LIMITER.name else name for name in names]
        lines = [f"| {_TITLES[kind]} | round trip | {' | '.join(shown)} |", f"|---|---:|{'---:|' * len(names)}"]
        for key, title, form in rows:
            for rtt in RTTS_MS:
                values = [found[name].get(f"{kind} {rtt}") for name in names]
                cells = " | ".join("–" if value is None else form.format(value[key]) for value in values)
                lines.append(f"| {title} | {f'{rtt} ms' if rtt else 'near'} | {cells} |")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _BELOW.format(versions=", ".join(versions))])


def main(quick: bool) -> dict[str, Any]:
    found = measure(quick)
    packages = installed(str(python_with(REQUIREMENTS, ROOT / ".bench" / "venv")))
    names = ("pyrate-limiter", "async-redis-rate-limiters", "aiolimiter")
    versions = [f"{name} {packages[name]}" for name in names]
    if BOTTLENECK.name in found:
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        versions.append(f"Bottleneck 2.19.5 on ioredis 5.4.1 and node {node.removeprefix('v')}")
    return {"markdown": document(found, versions), "figures": found}


_ABOVE = """# The limiter beside public ones

One contender after another, each on an empty server of its own, as its README shows it. *Near* is a server on the same
machine, *20 ms* the same behind a proxy that delays each direction by half of that. aiolimiter keeps one process
within its limit and needs no Redis; the others keep all processes."""
_BELOW = f"""What is done:

- **starts**: {PROCESSES} processes of 10 coroutines that always want more, for 10 s, blocks of 10 ms. Times are those
  at which a block begins. The rate is that after the first window's fill, of what the limit allows. A start of brimful
  counts for the window and its guard, 0.21 s for 1 s, against jitter on the way to the server that is asked; `guard_s`
  sets another.
- **two windows**: the same for 25 s, with brimful's `windows`, pyrate-limiter's rates and Bottleneck's `chain`, the
  longer window first.
- **Bottleneck** refills its reservoir with its heartbeat, every 5 s by default: here every 0.25 s.
- **slots**: {WAITERS} coroutines in 4 processes, holds of 0.1 to 0.3 s, {ROUNDS} rounds each. The ideal is first come,
  first served without any delay. pyrate-limiter and aiolimiter limit no slots.
- **commands**: all that the clients send; a script with its work in Redis is one.

{{versions}}; single runs, so small differences mean nothing. [More about slots and starts](README.md)."""


if __name__ == "__main__":
    print(main("--quick" in sys.argv)["markdown"])
