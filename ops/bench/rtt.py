"""Workers far from Redis, behind a proxy that delays each direction by half an RTT: the share of the limits they reach.

``python ops/bench --parts rtt`` takes about four minutes, of which windows of 60 s need two; ``--quick`` leaves those
out and takes about one.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from processes import Client, together

from brimful_worker.admission import mark_clean
from brimful_worker.local.server.valkey import Valkey

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.proxy import Proxy

RTTS_MS = (1, 20, 100, 300)
WINDOWS_S, QUICK_WINDOWS_S = {1: 15, 10: 3, 60: 1}, {1: 8, 10: 2}
"""Window → number of windows that are measured."""
_STARTS_A_SECOND, _SLOTS, _HOLD_S, _SLOT_HOLD_S = 10, 16, 0.05, 0.5
_PROCESSES = 2
_CLIENT = Path(__file__).with_name("client.py")
_SLOT_SECONDS, _QUICK_SLOT_SECONDS = 20.0, 8.0
BEFORE: dict[int | None, tuple[float, ...]] = {
    1: (0.817, 0.805, 0.0, 0.0),
    10: (0.970, 0.968, 0.0, 0.0),
    60: (0.987, 0.986, 0.985, 0.982),
    None: (0.971, 0.943, 0.816, 0.566),
}
"""The same figures of the last version whose starts all counted for the same time (b1c2236), by window and RTT."""


@contextmanager
def far(port: int, rtts_ms: tuple[int, ...]) -> Iterator[dict[int, str]]:
    """RTT → URL of a proxy, on an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def enter(rtt_ms: int) -> Proxy:
        proxy = await Proxy(port).__aenter__()
        proxy.delay_s = lambda: rtt_ms / 2000
        return proxy

    proxies = {rtt: asyncio.run_coroutine_threadsafe(enter(rtt), loop).result() for rtt in rtts_ms}
    try:
        yield {rtt: proxy.url for rtt, proxy in proxies.items()}
    finally:
        for proxy in proxies.values():
            asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _work(server: str, url: str, tag: str, **spec: Any) -> tuple[list[list[float]], str]:
    """All holds of two processes, and the error that prevented them, if one did."""
    with redis.Redis.from_url(server) as client:
        mark_clean(client, tag)
    spec = {"kind": "rounds", "slots": _SLOTS, "coroutines": 32, "bound_s": spec["seconds"] + 5, "tag": tag, **spec}
    try:
        clients = [Client([sys.executable, str(_CLIENT)], "brimful", url, spec) for _ in range(_PROCESSES)]
        for one in clients:
            one.expect("ready")
        results = together(clients)
    except RuntimeError as error:
        return [], str(error)
    return sorted(event for result in results for event in result["events"]), ""


def starts_share(server: str, url: str, rtt_ms: int, window_s: int, windows: int) -> dict[str, Any]:
    """Share of the starts that the limit allows, over whole windows from the first start on."""
    starts = _STARTS_A_SECOND * window_s
    seconds = windows * window_s * 2.2
    spec = {"starts": starts, "window_s": float(window_s), "hold_s": _HOLD_S, "seconds": min(seconds, 100.0)}
    events, failure = _work(server, url, f"r{rtt_ms}w{window_s}", **spec)
    entered = sorted(event[1] for event in events)
    last = min(windows * starts, len(entered) - 1)
    if last >= starts:
        share = last * window_s / starts / (entered[last] - entered[0])
    else:  # not even one window's
        share = len(entered) * window_s / starts / spec["seconds"]
    return {"rtt_ms": rtt_ms, "window_s": window_s, "share": share, "failure": failure}


def slots_share(server: str, url: str, rtt_ms: int, seconds: float) -> dict[str, Any]:
    """Share of the time for which the slots are used, where only they bind."""
    events, failure = _work(server, url, f"r{rtt_ms}s", hold_s=_SLOT_HOLD_S, seconds=seconds)
    span = max(out for _, _, out in events) - min(entered for _, entered, _ in events) if events else 1.0
    used = sum(out - entered for _, entered, out in events)
    return {"rtt_ms": rtt_ms, "window_s": None, "share": used / span / _SLOTS, "failure": failure}


def measure(quick: bool) -> list[dict[str, Any]]:
    """One window's cells together: they mostly wait."""
    found: list[dict[str, Any]] = []
    slot_seconds = _QUICK_SLOT_SECONDS if quick else _SLOT_SECONDS
    with tempfile.TemporaryDirectory(prefix="brimful-bench-") as folder, Valkey(Path(folder)) as server:
        port = int(server.url.rsplit(":", 1)[1].split("/")[0])
        with far(port, RTTS_MS) as urls, ThreadPoolExecutor(len(RTTS_MS)) as together:
            for window_s, windows in (QUICK_WINDOWS_S if quick else WINDOWS_S).items():
                args = (server.url, window_s, windows)
                found += together.map(lambda rtt, args=args: starts_share(args[0], urls[rtt], rtt, *args[1:]), RTTS_MS)
            found += together.map(lambda rtt: slots_share(server.url, urls[rtt], rtt, slot_seconds), RTTS_MS)
    return found


def main(quick: bool) -> dict[str, Any]:
    found = measure(quick)
    return {"markdown": document(found), "figures": {"before": list(BEFORE.items()), "after": found}}


def document(found: list[dict[str, Any]]) -> str:
    shares = {(cell["window_s"], cell["rtt_ms"]): cell["share"] for cell in found}
    heads = " | ".join(f"{rtt} ms" for rtt in RTTS_MS)
    lines = [_ABOVE, f"| limit | {heads} |", f"|---|{'---:|' * len(RTTS_MS)}"]
    for window_s in dict.fromkeys(cell["window_s"] for cell in found):
        limit = f"{_STARTS_A_SECOND * window_s} starts in {window_s} s" if window_s else f"{_SLOTS} slots"
        pairs = zip(BEFORE[window_s], (shares[window_s, rtt] for rtt in RTTS_MS), strict=True)
        lines.append(f"| {limit} | " + " | ".join(f"{before:.0%} → {after:.0%}" for before, after in pairs) + " |")
    failures = [f"- {cell['rtt_ms']} ms, {cell['window_s']} s: {cell['failure']}" for cell in found if cell["failure"]]
    return "\n".join([*lines, "", *failures, _BELOW])


_ABOVE = f"""# Far from Redis

The share of a limit that {_PROCESSES} processes reach behind a proxy that delays each direction by half of the round
trip: before → now. *Starts*: requests of {_HOLD_S:g} s, {_SLOTS} slots; whole windows from the first start on. *Slots*:
requests of {_SLOT_HOLD_S:g} s, no limit on starts. The guard is the default, 0.2 s + 1 % of the window.
"""
_BELOW = """
Before, a grant that took longer than a part of the guard was given back, whatever its worker did, and only one line of
the log said so. Now each start of a far worker counts longer in the window, by as much as its grants take to arrive,
and the command that fetches the next start is sent so that it reaches Redis when that start is free.

The slots' share is what it was: a freed slot's way to Redis and back. Reserving the next slot for a process beforehand
would win it back, and is not done: see [the distance of Redis](../redis.md#its-distance)."""


if __name__ == "__main__":
    for cell in measure("--quick" in sys.argv):
        print(cell, flush=True)
