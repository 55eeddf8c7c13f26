"""``brimful run`` as a researcher types it, measured by a gateway that shares no line with the product."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from brimful.cli.commands import run_command
from support.commands import Running, brimful, nothing_left, records, write_prompts
from support.processes import command_line
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-7f3d9a"


def _run_arguments(prompts: Path, out: Path, workers: int = 1) -> list[str | Path]:
    fixed = ["--pack", "off", "--n", "1", "--max-tokens", "32", "--json"]
    return ["run", prompts, "-o", out, *fixed, "--workers", str(workers)]


@pytest.mark.parametrize(
    ("slots", "starts", "window", "count", "workers"),
    [(16, 600, 60.0, 240, 3), (32, 64, 2.0, 160, 1)],
)
def test_a_run_stays_within_the_limits_samples_each_prompt_once_and_keeps_the_key(
    tmp_path: Path, slots: int, starts: int, window: float, count: int, workers: int
) -> None:
    """The key is in no output, no log at debug level and no process list."""
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", count), tmp_path / "out.jsonl"
    limits = {"BRIMFUL_SLOTS": str(slots), "BRIMFUL_STARTS": str(starts), "BRIMFUL_WINDOW_S": str(window)}
    env = {"ACS_API_KEY": KEY, "BRIMFUL_LOG_LEVEL": "DEBUG", **limits}
    with StrictGatewayProcess(slots=slots, starts=starts, window=window, latency=0.2, spread=0.1) as gateway:
        with Running(*_run_arguments(prompts, out, workers), ACS_API_BASE=gateway.url, **env) as run:
            _wait_for_a_record(out)
            for process in run.look():
                assert KEY not in " ".join(command_line(process))
            output, _ = run.process.communicate(timeout=120)
        ledger = gateway.ledger()
    assert run.process.returncode == 0, output
    assert ledger["peak_active"] <= slots
    assert ledger["most_in_window"] <= starts
    assert ledger["statuses"] == {"200": count}
    assert ledger["sampled_twice"] == 0
    assert sorted(record["id"] for record in records(out)) == sorted(f"p{place}" for place in range(count))
    summary = json.loads(output.splitlines()[-1])
    assert summary["rollouts"] == summary["succeeded"] == count
    assert summary["failed"] == summary["rate_limited"] == 0
    assert summary["starts"] == ledger["arrivals"]
    assert KEY not in output
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert KEY.encode() not in file.read_bytes(), file


def test_interrupted_twice_it_leaves_no_process_resumes_and_shares_its_window_with_the_next(tmp_path: Path) -> None:
    """Each run knows the starts of those before it, though each brings a Valkey of its own."""
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 80), tmp_path / "out.jsonl"
    with StrictGatewayProcess(starts=40, window=8, latency=0.3) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_STARTS": "40", "BRIMFUL_WINDOW_S": "8"}
        with Running(*_run_arguments(prompts, out), **env) as run:
            _wait_for_a_record(out)
            run.look()
            os.killpg(run.process.pid, signal.SIGINT)
            assert run.interrupt() == 130
            nothing_left(run.family)
        before = len(records(out))
        assert 0 < before < 80
        done = brimful(*_run_arguments(prompts, out), **env)
        assert done.returncode == 0, done.stderr
        sampled = gateway.ledger()["sampled"]
        others = write_prompts(tmp_path / "others.jsonl", 25)
        next_one = brimful(*_run_arguments(others, tmp_path / "others.out.jsonl"), **env)
        assert next_one.returncode == 0, next_one.stderr
        ledger = gateway.ledger()
    assert sorted(record["id"] for record in records(out)) == sorted(f"p{place}" for place in range(80))
    assert json.loads(done.stdout)["resumed"] >= before
    assert sampled <= 80 + 16
    assert ledger["most_in_window"] <= 40
    assert set(ledger["statuses"]) == {"200"}


def test_runs_at_the_same_time_share_the_limits(tmp_path: Path) -> None:
    env = {"BRIMFUL_STARTS": "60", "BRIMFUL_WINDOW_S": "5", "BRIMFUL_SLOTS": "6"}
    with StrictGatewayProcess(slots=6, starts=60, window=5, latency=0.2) as gateway:
        env |= {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        outs = [tmp_path / f"{place}.out.jsonl" for place in range(2)]
        runs = [
            Running(*_run_arguments(write_prompts(tmp_path / f"{place}.jsonl", 50), out), **env)
            for place, out in enumerate(outs)
        ]
        for run in runs:
            with run:
                output, _ = run.process.communicate(timeout=120)
                assert run.process.returncode == 0, output
        ledger = gateway.ledger()
    assert ledger["peak_active"] <= 6
    assert ledger["most_in_window"] <= 60
    assert ledger["statuses"] == {"200": 100}
    assert all(len(records(out)) == 50 for out in outs)


def _wait_for_a_record(out: Path) -> None:
    wait_until(lambda: out.exists() and out.stat().st_size > 0, "the first record", timeout=60)


@pytest.mark.parametrize(
    ("content", "words", "code"),
    [
        (None, "no such file", 2),
        ("", "empty", 2),
        ('{"prompt": "a"}\n' * 6 + "{not json\n", ":7:", 2),
        ('{"id": "x"}\n', "prompt", 2),
        ('{"prompt": "a", "n": 0}\n', "n:", 2),
        ('{"prompt": "a", "max_tokens": 32001}\n', "32,000", 2),
    ],
)
def test_bad_input_names_the_place_and_samples_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    words: str,
    code: int,
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    if content is not None:
        prompts.write_text(content)
    monkeypatch.setenv("ACS_API_BASE", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ACS_API_KEY", KEY)
    assert run_command(["run", str(prompts), "-o", str(tmp_path / "out.jsonl"), "--strict"]) == code
    said = capsys.readouterr().err
    assert words in said.lower()
    assert "Traceback" not in said
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"ACS_API_BASE": "http://127.0.0.1:9/v1"}, "ACS_API_KEY"),
        ({"ACS_API_KEY": KEY}, "ACS_API_BASE"),
        ({"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY, "BRIMFUL_PROVIDER": "nobody"}, "nobody"),
        ({"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY, "BRIMFUL_SLOTS": "many"}, "BRIMFUL_SLOTS"),
        (
            {"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": "redis://127.0.0.1:9/0"},
            "BRIMFUL_REDIS_URL",
        ),
        ({"ACS_API_BASE": "http://127.0.0.1:9/v1", "ACS_API_KEY": KEY}, "127.0.0.1:9"),
    ],
    ids=["no key", "no URL", "unknown provider", "bad number", "no Redis", "no gateway"],
)
def test_a_bad_setting_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    env: dict[str, str],
    words: str,
) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 2)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert run_command(["run", str(prompts), "-o", str(tmp_path / "out.jsonl")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert KEY not in said
    assert not (tmp_path / "out.jsonl").exists()
