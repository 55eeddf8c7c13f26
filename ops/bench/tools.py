"""Whole programs beside `brimful run`: one file, one key, the same mock gateway, one after another.

``python ops/bench --parts tools`` takes about eight minutes, with ``--quick`` about four. The programs are installed
into environments of their own (tools-requirements.txt, and curator-requirements.txt, since curator needs an older
OpenAI client).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers import python_with
from runs import gateway, ledger, run

SLOTS, STARTS, WINDOW_S, LATENCY_S = 16, 100, 10.0, 0.5
"""The starts are 600 a minute, as a window of ten seconds: a short run would never use up a minute's."""
HERE = Path(__file__).parent
CONTENDERS = (
    ("brimful run, 4 workers", "brimful", 4),
    ("the ACS page's script", "script", 1),
    ("the same in 4 processes", "script", 4),
    ("saturate", "saturate", 1),
    ("aiometer", "aiometer", 1),
    ("curator", "curator", 1),
)
"""What the table calls it, the program, its processes."""


@dataclass(frozen=True)
class Figures:
    answered: int
    seconds: float
    """From the first arrival at the gateway to the last."""
    refused: int
    """Answers of 429."""
    most_active: int
    most_arrivals: int
    """In any window, refused ones too: what the provider sees."""


def environment(program: str) -> Path:
    """The Python of this program, with what it needs."""
    name = "curator" if program == "curator" else "tools"
    return python_with(HERE / f"{name}-requirements.txt", HERE.parents[1] / ".bench" / name, sys.executable)


def measure(program: str, processes: int, prompts: int, python: Path, folder: Path) -> Figures:
    lines = [json.dumps({"prompt": f"Sample {place}: once upon a time"}) + "\n" for place in range(prompts)]
    with gateway(slots=SLOTS, starts=STARTS, window_s=WINDOW_S, latency_s=LATENCY_S, per_token_s=0.0) as url:
        if program == "brimful":
            source = folder / "prompts.jsonl"
            source.write_text("".join(lines))
            limits = {"BRIMFUL_STARTS": str(STARTS), "BRIMFUL_WINDOW_S": str(WINDOW_S), "BRIMFUL_SLOTS": str(SLOTS)}
            options = ("--pack", "off", "--max-tokens", "8", "--workers", str(processes))
            answered = run(source, folder / "out.jsonl", url, *options, env=limits).summary["succeeded"]
        else:
            answered = _run_script(program, processes, lines, url, python, folder)
        seen = ledger(url)
    return Figures(
        answered,
        round(seen["last_arrival_s"] - seen["first_arrival_s"], 1),
        seen["rate_limited"],
        seen["peak_active"],
        seen["most_arrivals_in_window"],
    )


def _run_script(program: str, processes: int, lines: list[str], url: str, python: Path, folder: Path) -> int:
    running = []
    for place in range(processes):
        share = folder / f"share-{place}.jsonl"
        share.write_text("".join(lines[place::processes]))
        command = [str(python), str(HERE / "tool_scripts.py"), program, str(share), url]
        home = {**os.environ, "HOME": str(folder)}  # curator caches answers there
        running.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=home)
        )
    answered = 0
    for process in running:
        said = process.communicate(timeout=600)[0].split()
        if process.returncode or said[-2:-1] != ["answered"]:
            raise SystemExit(f"{program} ended with {process.returncode}")
        answered += int(said[-1])
    return answered


TEXT = """# Whole programs on one key

For those who have a script already, or look at other programs for the same work.

{prompts} prompts, one a request of {latency} s, at a gateway with {slots} slots, 64 places to wait, and {starts} starts
in any {window:.0f} s (600 a minute). Fewer than {ideal:.0f} s are not possible within these limits. *The ACS page's
script* is the recipe of that page: OpenAI's client with its two retries, one gather, a semaphore of {slots}. The other
programs are used as their own pages show; saturate has no limit on starts, curator is given both limits. *Answered*
counts prompts with an answer.

| | answered | first to last start, s | 429s | most active | most requests in any {window:.0f} s |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}

A request that is refused still arrives at the provider, so it is in the last column. brimful widens the window by its
guard, here 0.3 s. The load was {busy:.1f} when it began.
"""


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    prompts, busy = 300 if quick else 500, os.getloadavg()[0]
    found: dict[str, Figures] = {}
    for label, program, processes in CONTENDERS:
        python = environment(program)
        with tempfile.TemporaryDirectory(prefix="brimful-tools-") as name:
            found[label] = measure(program, processes, prompts, python, Path(name))
    rows = "\n".join(
        f"| {label} | {one.answered} | {one.seconds} | {one.refused} | {one.most_active} | {one.most_arrivals} |"
        for label, one in found.items()
    )
    text = TEXT.format(
        prompts=prompts, latency=LATENCY_S, slots=SLOTS, starts=STARTS, window=WINDOW_S, rows=rows, busy=busy,
        ideal=(prompts // STARTS - 1) * WINDOW_S,
    )  # fmt: skip
    return {"markdown": text, "figures": {label: asdict(one) for label, one in found.items()}}
