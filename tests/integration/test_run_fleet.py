"""``brimful run`` over a real fleet of this machine, against the stand-in gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.commands import Running, brimful, command, environment, nothing_left, records, write_prompts
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-91b7aa"


def _arguments(source: Path | str, out: Path | str, *more: str) -> list[str | Path]:
    return ["run", source, "-o", out, "--max-tokens", "8", "--workers", "2", *more]


def _identities(out: Path) -> list[tuple[Any, ...]]:
    return sorted((record["id"], record["prompt_index"], record["choice_index"]) for record in records(out))


def test_a_rehearsal_end_to_end(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    done = brimful(*_arguments(source, out, "--n", "2", "--rehearse", "--json", "--order", "input"))
    assert done.returncode == 0, done.stderr
    summary, there = json.loads(done.stdout), records(out)
    assert _identities(out) == sorted((f"p{line}", 0, choice) for line in range(60) for choice in range(2))
    assert [record["line"] for record in there] == sorted(record["line"] for record in there)
    assert (summary["requests"], summary["succeeded"], summary["rollouts"], summary["failed"]) == (60, 60, 120, 0)
    assert summary["tokens"] == sum(record["usage"]["total_tokens"] for record in there) > 0
    assert summary["starts"] == summary["attempts"] <= 60
    assert summary["packed_requests"] > 0
    assert "\x1b" not in done.stderr
    again = brimful(*_arguments(source, out, "--n", "2", "--rehearse", "--json"))
    assert (again.returncode, json.loads(again.stdout)["resumed"]) == (0, 120)
    page = brimful("report", out)
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "out.jsonl.report.html").stat().st_size > 10_000


def test_a_budget_ends_the_run_and_more_of_it_goes_on(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    done = brimful(*_arguments(source, out, "--rehearse", "--json", "--budget-tokens", "200"))
    assert done.returncode == 4, done.stderr
    summary = json.loads(done.stdout)
    assert 150 <= summary["tokens"] <= 200
    assert 0 < summary["rollouts"] < 40
    assert "--budget-tokens" in summary["next"]
    done = brimful(*_arguments(source, out, "--rehearse", "--json", "--budget-tokens", "100000"))
    assert (done.returncode, len(records(out))) == (0, 40), done.stderr


def test_a_slow_pipe_is_sampled_line_by_line(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(*_arguments("-", out, "--rehearse")), env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        for line in range(1, 4):
            process.stdin.write(f"prompt {line}\n")
            process.stdin.flush()
            wait_until(lambda count=line: out.exists() and len(records(out)) == count, f"rollout {line}", timeout=40)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()
    assert [record["id"] for record in records(out)] == ["1", "2", "3"]


def test_a_refused_key_stops_at_once(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    with StrictGatewayProcess() as gateway:
        done = brimful(*_arguments(source, out), ACS_API_BASE=gateway.url.replace("/v1", "/nothing"), ACS_API_KEY=KEY)
        assert done.returncode in (3, 5), done.stderr
        assert KEY not in done.stdout + done.stderr
    assert not out.exists()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 120), tmp_path / "out.jsonl"
    with StrictGatewayProcess(latency=0.3) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        arguments = _arguments(source, out, "--pack", "off")
        with Running(*arguments, **env) as run:
            wait_until(lambda: out.exists() and out.stat().st_size > 0, "the first record", timeout=60)
            run.look()
            os.kill(run.process.pid, signal.SIGKILL)
            run.process.wait()
            nothing_left(run.family)
        done = brimful(*arguments, "--json", **env)
        ledger = gateway.ledger()
    assert done.returncode == 0, done.stderr
    assert _identities(out) == sorted((f"p{line}", 0, 0) for line in range(120))
    assert ledger["sampled"] <= 120 + 16


@pytest.mark.parametrize("name", ["out.parquet", "batch.jsonl"])
def test_an_interrupted_run_drains_and_tells_how_to_go_on(tmp_path: Path, name: str) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 200), tmp_path / name
    form = ["--format", "openai-batch"] if name == "batch.jsonl" else []
    with StrictGatewayProcess(latency=0.5) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        ledger = tmp_path / f"{name}.rollouts.jsonl"
        with Running(*_arguments(source, out, "--pack", "off", *form), **env) as run:
            wait_until(lambda: ledger.exists() and ledger.stat().st_size > 0, "the first record", timeout=60)
            run.look()
            os.killpg(run.process.pid, signal.SIGINT)
            output, _ = run.process.communicate(timeout=60)
            assert run.process.returncode == 130, output
            nothing_left(run.family)
        sampled = gateway.ledger()["sampled"]
    assert "stopping: nothing new is asked" in output
    assert f"-o {out}" in output
    assert 0 < len(records(ledger)) < 200
    assert len(records(ledger)) >= sampled - 4  # what was on the wire was waited for
    assert out.exists()
