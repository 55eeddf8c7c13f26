"""Runs one storm: ``python -m support.storm --seconds 40 --seed 7``. Exits with 1 if an audit found something."""

from __future__ import annotations

import argparse

from support.storm.engine import Storm
from support.storm.machines import say
from support.storm.schedule import draw


def main() -> int:
    parser = argparse.ArgumentParser(prog="storm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="in place of --minutes")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--visibility", type=int, default=15, help="BRIMFUL_VISIBILITY_TIMEOUT_S of the fleet")
    parser.add_argument("--lines", type=int, default=200, help="of a run; a packed run has ten times as many")
    parser.add_argument("--rabbitmq", action="store_true", help="let RabbitMQ be the broker")
    given = parser.parse_args()
    schedule = draw(given.seed, given.seconds or 60 * given.minutes)
    options = {"workers": given.workers, "visibility_s": given.visibility, "lines": given.lines}
    findings = Storm(schedule, **options, rabbitmq=given.rabbitmq).run()
    for finding in findings:
        say(f"FINDING (seed {given.seed}): {finding}")
    say(f"storm: seed {given.seed}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
