"""A million one-line prompts in constant memory: `brimful run` against a fast gateway, with its memory sampled.

``python ops/bench --parts million`` takes a few minutes, with ``--quick`` (a tenth of the lines) less than one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from runs import Look, gateway, ledger, run

SLOTS, MAX_TOKENS, WORKERS = 64, 16, 2
_BOUND_MB = 250

TEXT = """# A million lines

{lines:,} one-line prompts, `--pack auto`, {slots} slots and no limit of starts, {workers} workers on one embedded
Valkey, a gateway that answers after 20 ms; {cores} cores for all of it, the gateway too.

| | |
| --- | ---: |
| records, each once | {records:,} |
| seconds, from typing the command to its end | {seconds:.0f} |
| rollouts a second while sampling | {per_second:,.0f} |
| requests | {requests:,} |
| submitter's memory: at a quarter, at the end, at most | {quarter:.0f}, {end:.0f}, {most:.0f} MB |
| Redis's memory: median, at most | {redis_median:.1f}, {redis_most:.1f} MB |
| largest worker's memory at the end | {worker:.0f} MB |
"""


def write_prompts(path: Path, lines: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for place in range(lines):
            file.write(json.dumps({"id": f"p{place}", "prompt": f"Write a line about {place}."}) + "\n")


def records(out: Path, lines: int) -> int:
    """The number of records. Raises SystemExit unless each line has exactly one."""
    seen, count = bytearray(lines + 1), 0
    with out.open("rb") as file:
        for row in file:
            record = json.loads(row)
            count += 1
            seen[record["line"]] += 1
            if record["id"] != f"p{record['line'] - 1}":
                raise SystemExit(f"a record of another line: {record}")
    if sum(seen) != lines or max(seen) > 1:
        raise SystemExit(f"{count} records of {lines}, {seen.count(0) - 1} lines missing")
    return count


def figures(lines: int, looks: Sequence[Look], summary: dict[str, Any], seconds: float) -> dict[str, Any]:
    sampling = [look for look in looks if look.written and look.redis]
    if not sampling:
        raise SystemExit("it was over before its memory could be looked at")
    return {
        "lines": lines,
        "seconds": round(seconds, 1),
        "per_second": round(lines / summary["seconds"]),
        "requests": summary["starts"],
        "quarter": sampling[len(sampling) // 4].submitter,
        "end": sampling[-1].submitter,
        "most": max(look.submitter for look in looks),
        "redis_median": round(median(look.redis for look in sampling), 1),
        "redis_most": max(look.redis for look in sampling),
        "worker": sampling[-1].worker,
    }


def measure(folder: Path, lines: int, look_s: float) -> dict[str, Any]:
    """Run it in ``folder``. Raises SystemExit if a line is missing or occurs twice."""
    prompts, out = folder / "prompts.jsonl", folder / "out.jsonl"
    write_prompts(prompts, lines)
    fast = {"slots": None, "starts": None, "latency_s": 0.02, "per_token_s": 0.0, "batch_factor": 0.0}
    with gateway(**fast, track_prompts=False, arrivals_kept=0) as url:
        arguments = ("--max-tokens", str(MAX_TOKENS), "--workers", str(WORKERS))
        env = {"BRIMFUL_SLOTS": str(SLOTS), "BRIMFUL_STARTS": "0"}
        done = run(prompts, out, url, *arguments, env=env, look_s=look_s)
        sampled = ledger(url)["rollouts"]["total"]
    looks = [asdict(look) for look in done.looks]
    found = figures(lines, done.looks, done.summary, done.seconds)
    return {**found, "records": records(out, lines), "sampled": sampled, "looks": looks}


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``. Raises SystemExit if a line is missing or memory exceeds its bound."""
    with tempfile.TemporaryDirectory(prefix="brimful-million-") as name:
        found = measure(Path(name), 100_000 if quick else 1_000_000, look_s=0.5 if quick else 2.0)
    if found["sampled"] != found["lines"]:
        raise SystemExit(f"{found['sampled']} rollouts were sampled for {found['lines']} lines")
    if found["most"] >= _BOUND_MB:
        raise SystemExit(f"the submitter took {found['most']} MB")
    text = TEXT.format(**found, slots=SLOTS, workers=WORKERS, cores=os.cpu_count())
    return {"markdown": text, "figures": found}
