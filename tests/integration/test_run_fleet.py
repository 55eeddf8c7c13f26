"""``brimful run`` with a real local fleet, against the mock gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.commands import (
    Running,
    brimful,
    brimful_in_process,
    command,
    environment,
    nothing_left,
    records,
    write_prompts,
)
from support.fleets import Fleet, declare_new, shared_fleet
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-91b7aa"


def _run(source: Path | str, out: Path | str, *more: str) -> list[str | Path]:
    return ["run", source, "-o", out, "--max-tokens", "8", *more]


def _arguments(source: Path | str, out: Path | str, *more: str, workers: int = 1) -> list[str | Path]:
    return _run(source, out, "--workers", str(workers), *more)


def _identities(out: Path) -> list[tuple[Any, ...]]:
    return sorted((record["id"], record["prompt_index"], record["choice_index"]) for record in records(out))


def test_a_rehearsal_end_to_end(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    done = brimful(*_arguments(source, out, "--n", "2", "--rehearse", "--json", "--order", "input", workers=2))
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """For what does not depend on the run's own fleet."""
    with shared_fleet(tmp_path_factory.mktemp("shared"), latency_s=0.1, workers=1, key=KEY) as shared:
        yield shared


def _env(shared: Fleet) -> dict[str, str]:
    return {"ACS_API_BASE": shared.gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": shared.local.redis_url}


def test_a_budget_ends_the_run_and_a_larger_one_resumes_it(tmp_path: Path, shared: Fleet) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    done = brimful(*_run(source, out, "--json", "--budget-tokens", "200"), **_env(shared))
    assert done.returncode == 4, done.stderr
    summary = json.loads(done.stdout)
    assert 150 <= summary["tokens"] <= 200
    assert 0 < summary["rollouts"] < 40
    assert "--budget-tokens" in summary["next"]
    done = brimful(*_run(source, out, "--json", "--budget-tokens", "100000"), **_env(shared))
    assert (done.returncode, len(records(out))) == (0, 40), done.stderr


def test_a_slow_pipe_is_sampled_line_by_line(tmp_path: Path, shared: Fleet) -> None:
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(*_run("-", out)), env=environment(**_env(shared)), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        for line in range(1, 4):
            process.stdin.write(f"prompt {line}\n")
            process.stdin.flush()
            wait_until(lambda count=line: out.exists() and len(records(out)) == count, f"rollout {line}")
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()
    assert [record["id"] for record in records(out)] == ["1", "2", "3"]


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[str]:
    """A provider that answers every request with one status."""

    class Refusing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = json.dumps({"error": {"message": "no", "code": "refused"}}).encode()
            self.send_response(request.param)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("refusing", [401], indirect=True)
def test_a_refused_key_stops_at_once(tmp_path: Path, refusing: str) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 200), tmp_path / "out.jsonl"
    done = brimful(*_arguments(source, out, "--json", "--pack", "off"), ACS_API_BASE=refusing, ACS_API_KEY=KEY)
    assert done.returncode == 5, done.stderr
    assert KEY not in done.stdout + done.stderr
    assert "the key was refused" in done.stderr
    summary = json.loads(done.stdout)
    assert (summary["ended"], summary["rollouts"], summary["failed"], summary["left"]) == ("key_refused", 0, 0, 200)
    assert summary["starts"] <= 64
    assert not out.exists()


def test_failures_are_recorded_and_retried(tmp_path: Path, shared: Fleet) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    arguments = _run(source, out, "--json", "--pack", "off")
    shared.gateway.set_faults("400")
    try:
        done = brimful(*arguments, **_env(shared))
    finally:
        shared.gateway.set_faults("")
    assert done.returncode == 3, done.stderr
    summary, errors = json.loads(done.stdout), records(tmp_path / "out.jsonl.errors.jsonl")
    assert sorted(error["id"] for error in errors) == sorted(f"p{line}" for line in range(12))
    assert all(error["cause"] == "bad_request" and error["request"]["prompt"] for error in errors)
    assert (summary["failed"], summary["failed_by_cause"]) == (12, {"bad_request": 12})
    assert summary["next"] is None  # a 400 does not pass by itself
    shared.gateway.reset()
    again = brimful_in_process(*arguments, **_env(shared))
    assert again.returncode == 3, again.stderr
    assert shared.gateway.ledger()["arrivals"] == 0
    again = brimful(*arguments, "--retry-errors", **_env(shared))
    assert again.returncode == 0, again.stderr
    assert len(records(out)) == 12
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


@pytest.mark.parametrize(("refusing", "pack"), [(404, "off"), (400, "auto")], indirect=["refusing"])
def test_a_provider_that_refuses_everything_stops_the_run_with_its_words(
    tmp_path: Path, shared: Fleet, refusing: str, pack: str
) -> None:
    """A gateway may say 400 for a wrong key, or 404 for a wrong path: it is no fault of 400 lines."""
    source, out = write_prompts(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    env = {"ACS_API_BASE": refusing, "ACS_API_KEY": KEY}
    done = brimful(*_arguments(source, out, "--json", "--pack", pack), **env)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "no (refused)" in last
    assert "--keep-going" in last
    summary = json.loads(done.stdout)
    assert (summary["ended"], summary["rollouts"]) == ("error", 0)
    assert 0 < summary["starts"] <= 150
    assert (summary["left"], summary["failed"]) == (400, 0)
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
    again = brimful(*_run(source, out, "--json"), **_env(shared))
    assert again.returncode == 0, again.stderr
    assert len(records(out)) == 400


def test_a_closed_standard_output_ends_the_run(tmp_path: Path, shared: Fleet) -> None:
    source = write_prompts(tmp_path / "in.jsonl", 300)
    process = subprocess.Popen(
        command(*_run(source, "-", "--pack", "off")), env=environment(**_env(shared)), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert json.loads(process.stdout.readline())["text"]
        process.stdout.close()
        printed = process.stderr.read()
        assert process.wait(60) == 1
    assert printed.splitlines()[-1] == "brimful: standard output was closed"
    assert "Traceback" not in printed
    assert "Exception ignored" not in printed


def test_a_run_waits_for_a_fleet_s_first_worker(tmp_path: Path, valkey: Valkey) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    with StrictGatewayProcess() as gateway:
        env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        declare_new(valkey, KEY)
        with Running("run", source, "-o", out, "--max-tokens", "8", BRIMFUL_REDIS_URL=valkey.url) as run:
            assert "brimful worker" in run.line_with("no worker answers")
            with Running("worker", **env) as worker:
                output, _ = run.process.communicate(timeout=60)
                assert run.process.returncode == 0, output
                worker.look()
                assert worker.interrupt() in (0, 130)
    assert len(records(out)) == 5


def test_a_killed_run_resumes(tmp_path: Path) -> None:
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


def test_an_interrupted_run_drains_and_prints_the_command_that_resumes_it(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 200), tmp_path / "batch.jsonl"
    form = ["--format", "openai-batch"]
    with StrictGatewayProcess(latency=0.5) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        ledger = tmp_path / "batch.jsonl.rollouts.jsonl"
        with Running(*_arguments(source, out, "--pack", "off", *form), **env) as run:
            wait_until(lambda: ledger.exists() and ledger.stat().st_size > 0, "the first record", timeout=60)
            run.look()
            os.killpg(run.process.pid, signal.SIGINT)
            output, _ = run.process.communicate(timeout=60)
            assert run.process.returncode == 130, output
            nothing_left(run.family)
        sampled = gateway.ledger()["sampled"]
    assert "stopping: no new API calls are made" in output
    assert f"-o {out}" in output
    assert 0 < len(records(ledger)) < 200
    assert len(records(ledger)) == sampled  # what was on the wire was waited for
    assert out.exists()
