"""`brimful run` against a provider with faults, a refused key or no budget left: its files and the gateway's log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.commands import Running, brimful, records, write_prompts
from support.gateways import GatewayProcess, gateway_process
from support.processes import command_line
from support.waiting import wait_until

LONG = os.environ.get("BRIMFUL_CHAOS") == "long"
KEY = "sk-canary-0d6fe2"
MIXED = "500:0.04,502html:0.04,503:0.03,reset:0.03,trunc:0.02,chunkcut:0.02,hang:0.02"
"""20 % of the requests fail."""


def _env(gateway: GatewayProcess, **more: str) -> dict[str, str]:
    return {
        "ACS_API_BASE": gateway.url,
        "ACS_API_KEY": KEY,
        "BRIMFUL_STARTS": "0",
        "BRIMFUL_BACKOFF_BASE_S": "0.1",
        "BRIMFUL_BACKOFF_CAP_S": "1",
        **more,
    }


def _arguments(prompts: Path, out: Path, *more: str, max_tokens: int = 8) -> list[str | Path]:
    fixed = ["--pack", "off", "--workers", "1", "--json"]
    return ["run", prompts, "-o", out, "--max-tokens", str(max_tokens), *fixed, *more]


def _all_of(count: int) -> list[str]:
    return sorted(f"p{place}" for place in range(count))


def _ids(out: Path) -> list[str]:
    return sorted(record["id"] for record in records(out)) if out.exists() else []


def _sampled_once(gateway: GatewayProcess, count: int) -> bool:
    found: dict[str, Any] = gateway.ledger()["rollouts"]
    return found["distinct"] == count and found["repeated"] == 0


@pytest.mark.chaos
@pytest.mark.timeout(900 if LONG else 120)
def test_with_a_fifth_of_all_answers_failing_every_request_is_sampled_once(tmp_path: Path) -> None:
    count = 2000 if LONG else 300
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", count), tmp_path / "out.jsonl"
    with gateway_process("--latency", "0.05", "--per-token", "0", "--starts", "0", "--faults", MIXED) as gateway:
        done = brimful(*_arguments(prompts, out), timeout=800, **_env(gateway, BRIMFUL_TIMEOUT_S="2"))
        assert done.returncode == 0, done.stderr
        ledger = gateway.ledger()
        assert _sampled_once(gateway, count)
    assert _ids(out) == _all_of(count)
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
    assert ledger["attempts_max"] <= 8
    assert len(ledger["faults"]) == 7, "not all the faults happened"
    summary = json.loads(done.stdout)
    # An attempt on a connection that the gateway was closing never arrives.
    assert 1.1 * count <= ledger["arrivals"] <= summary["attempts"] <= 1.05 * ledger["arrivals"]


def test_a_refused_key_or_a_used_up_budget_ends_the_run_which_then_resumes(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 80), tmp_path / "out.jsonl"
    flags = ("--latency", "0.2", "--per-token", "0", "--starts", "0", "--budget", "6000", "--faults", "401:#10")
    with gateway_process(*flags) as gateway:
        # A hold is about 400 tokens, and a text uses 24 to 400 of them: at most fifteen holds fit at once.
        arguments = _arguments(prompts, out, max_tokens=400)
        done = brimful(*arguments, **_env(gateway))
        assert done.returncode == 5, done.stderr
        assert "401" in done.stderr
        assert KEY not in done.stderr + done.stdout
        stopped = gateway.ledger()
        assert stopped["statuses"]["401"] == 1
        assert stopped["arrivals"] < 80, "the run continued after the key was refused"
        assert len(_ids(out)) == stopped["rollouts"]["total"], "a sampled rollout is not in the file"
        assert json.loads(done.stdout)["ended"] == "key_refused"

        done = brimful(*arguments, **_env(gateway))
        assert done.returncode == 4, done.stderr
        assert json.loads(done.stdout)["ended"] == "budget"
        assert json.loads(done.stdout)["resumed"] == stopped["rollouts"]["total"]
        short = gateway.ledger()
        assert short["budget"]["refused"] > 0
        assert short["budget"]["used"] > 6000 - 2 * 404, "the run ended while another hold would have fit"
        assert len(_ids(out)) == short["rollouts"]["total"] < 80

        gateway.set_options(budget=1_000_000)
        again = brimful(*arguments, **_env(gateway))
        assert again.returncode == 0, again.stderr
        assert _sampled_once(gateway, 80)
    assert _ids(out) == _all_of(80)


def test_jobs_of_a_run_outlive_its_worker(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 12), tmp_path / "out.jsonl"
    with gateway_process("--latency", "3", "--per-token", "0", "--starts", "0") as gateway:
        env = _env(gateway, BRIMFUL_VISIBILITY_TIMEOUT_S="3", BRIMFUL_LEASE_S="4", BRIMFUL_JOB_POLL_S="0.2")
        with Running(*_arguments(prompts, out, "--job"), **env) as run:
            wait_until(lambda: gateway.ledger()["jobs"]["created"] >= 12, "the Jobs at the gateway")
            [worker] = [process for process in run.look() if "worker" in command_line(process)]
            worker.kill()
            said, _ = run.process.communicate(timeout=90)
            assert run.process.returncode == 0, said
        jobs = gateway.ledger()["jobs"]
    assert _ids(out) == _all_of(12)
    assert (jobs["created"], jobs["by_status"]) == (12, {"succeeded": 12})
    assert sum(jobs["submits"].values()) > 12, "no Job was submitted again: was the worker killed too late?"
