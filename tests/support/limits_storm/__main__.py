"""Runs storms over the limits: ``python -m support.limits_storm --seconds 60 --seed 7``. Exits with 1 at a finding."""

from __future__ import annotations

import argparse
import asyncio

from support.limits_storm.engine import Storm
from support.limits_storm.schedule import FAULTS, draw
from support.storm.machines import say


def main() -> int:
    parser = argparse.ArgumentParser(prog="limits_storm", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each")
    parser.add_argument("--seconds", type=float, help="in place of --minutes")
    parser.add_argument("--skip", nargs="+", default=(), choices=list(FAULTS), metavar="FAULT", help="leave these out")
    parser.add_argument("--show", action="store_true", help="print the schedule, and run nothing")
    given = parser.parse_args()
    seconds = given.seconds or 60 * given.minutes
    found = 0
    for seed in range(given.seed, given.seed + given.seeds):
        if given.show:
            say("\n".join(map(str, draw(seed, seconds))))
            continue
        findings = asyncio.run(Storm(seed, seconds, skip=given.skip).run())
        for finding in findings:
            say(f"FINDING (seed {seed}): {finding}")
        say(f"limits storm: seed {seed}: {len(findings)} findings")
        found += len(findings)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
