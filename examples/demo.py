"""``make demo``: a whole fleet on this machine against the mock gateway, judged by the gateway's request log.

It starts an embedded Valkey, a mock gateway, three workers and Flower, and sends each prompt of ``prompts.jsonl`` once,
one a request, so that both limits bind. Exits 0 only if the request log and the output are right.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from brimful.config import Settings
from brimful_worker.local.fleet import LocalFleet

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts.jsonl"
DEMO = HERE.parent / ".demo"
WORKERS = 3


def main() -> int:
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    # The shell's environment may name a real fleet: ignore it.
    for name in [name for name in os.environ if name.startswith(("BRIMFUL_", "ACS_", "OPENAI_"))]:
        del os.environ[name]
    settings = Settings.load(state_dir=DEMO / "state", provider="acs")
    with LocalFleet(settings, workers=WORKERS, flower=True, rehearse=True) as fleet:
        assert fleet.gateway_url is not None
        say(f"a fleet of {WORKERS} workers against the mock gateway at {fleet.gateway_url}")
        user, password = fleet.flower_login or ("", "")
        say(f"Flower is at {fleet.flower_url} (user {user}, password {password})")
        out = DEMO / "rollouts.jsonl"
        code = run(fleet.redis_url, out, "--pack", "off")
        ledger = read_ledger(fleet.gateway_url)
    return judge(code, out, ledger)


def run(redis_url: str, out: Path, *options: str) -> int:
    arguments = ["run", str(PROMPTS), "-o", str(out), "--max-tokens", "16", *options]
    environment = {**os.environ, "BRIMFUL_REDIS_URL": redis_url}
    return subprocess.run([sys.executable, "-m", "brimful.cli", *arguments], env=environment, check=False).returncode


def read_ledger(gateway_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(gateway_url.removesuffix("/v1") + "/ledger", timeout=30) as answer:
        return dict(json.load(answer))


def judge(code: int, out: Path, ledger: dict[str, Any]) -> int:
    """Count the output and compare the request log with the key's limits."""
    asked = {json.loads(line)["id"] for line in PROMPTS.open(encoding="utf-8")}
    lines = [json.loads(line) for line in out.open(encoding="utf-8")]
    rollouts = Counter((line["id"], line["prompt_index"], line["choice_index"]) for line in lines)
    once = max(rollouts.values()) == 1 and {key[0] for key in rollouts} == asked
    arrivals = ledger["most_arrivals_in_window"]
    refused = ledger["statuses"].get("429", 0)
    checks = {
        f"{len(lines)} rollouts of {len(asked)} prompts, each exactly once": once,
        f"at most {ledger['peak_active']} requests active (16 slots)": ledger["peak_active"] <= 16,
        f"at most {arrivals} starts in any window (600 a minute)": arrivals <= 600,
        f"{refused} answers of 429": not refused,
        f"the run exited with {code}": code == 0,
    }
    shown = ("peak_active", "peak_waiting", "most_arrivals_in_window", "statuses")
    say("the gateway's request log: " + json.dumps({name: ledger[name] for name in shown}))
    for what, good in checks.items():
        say(f"{'ok ' if good else 'BAD'} {what}")
    return 0 if all(checks.values()) else 1


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
