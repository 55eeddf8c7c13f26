"""Templates and sweeps through a real fleet: every line with every combination, packed, and resumed after a kill."""

from __future__ import annotations

import json
import os
import signal
from itertools import product
from pathlib import Path

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, nothing_left, records
from support.fleets import declare_new
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-7a10c4"
MODELS, TEMPERATURES = ("llama-8b", "llama-70b"), (0, 0.7)
SWEEP = ("--model", ",".join(MODELS), "--temperature", ",".join(map(str, TEMPERATURES)))


def _write(path: Path, count: int) -> Path:
    path.write_text(
        "".join(json.dumps({"id": n, "a": n, "b": n + 1, "answer": 2 * n + 1}) + "\n" for n in range(count))
    )
    return path


def test_a_sweep_of_a_template_is_packed_and_compared(tmp_path: Path) -> None:
    source, out = _write(tmp_path / "in.jsonl", 100), tmp_path / "out.jsonl"
    template = "{% if a < 10 %}0{% endif %}{{ a }}+{{ b }}="
    with StrictGatewayProcess() as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        asked = ("run", source, "-o", out, "--max-tokens", "8", "--template", template, *SWEEP)
        done = brimful(*asked, "--workers", "1", "--order", "input", "--json", **env)
        ledger = gateway.ledger()
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["requests"], summary["rollouts"], summary["failed"]) == (400, 400, 0)
    assert [row["rollouts"] for row in summary["sweep"]] == [100] * 4
    assert ledger["fields"] == ["max_tokens", "model", "prompt", "temperature"]
    assert ledger["arrivals"] <= 100, ledger["arrivals"]  # 400 where each is a request of its own
    found = records(out)
    combinations = [{"model": model, "temperature": warmth} for model, warmth in product(MODELS, TEMPERATURES)]
    assert [(record["line"], record["sweep"]) for record in found] == list(product(range(1, 101), combinations))
    for record in found:
        a, b = record["input"]["a"], record["input"]["b"]
        assert record["text"] == f" {a:02d}+{b}= → 0"
        assert record["asked_model"] == record["sweep"]["model"]
        assert record["id"] == f"{a}#model={record['asked_model']},temperature={record['sweep']['temperature']:g}"


def test_a_killed_sweep_of_a_file_goes_on_where_it_stopped(tmp_path: Path, valkey: Valkey) -> None:
    source, out, count = _write(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl", 160
    with StrictGatewayProcess(latency=0.3) as gateway:
        env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        declare_new(valkey, KEY)
        arguments = ["run", source, "-o", out, "--max-tokens", "8", "--pack", "off", *SWEEP]
        arguments += ["--template", "{{ a }}+{{ b }}="]
        with Running("worker", **env) as worker:
            with Running(*arguments, **env) as run:
                wait_until(lambda: out.exists() and out.stat().st_size > 0, "the first record", timeout=60)
                family = run.look()
                os.kill(run.process.pid, signal.SIGKILL)
                run.process.wait()
                nothing_left(family)  # the process that renders ends with it
            there = len(records(out))
            wait_until(lambda: gateway.ledger()["sampled"] >= there + 8, "more to be sampled", timeout=60)
            with Running(*arguments, **env) as run:
                output, _ = run.process.communicate(timeout=120)
                assert run.process.returncode == 0, output
            worker.look()
            assert worker.interrupt() in (0, 130)
        ledger = gateway.ledger()
    assert there < count
    found = records(out)
    places = {(record["line"], record["sweep"]["model"], record["sweep"]["temperature"]) for record in found}
    assert places == set(product(range(1, 41), MODELS, TEMPERATURES))
    assert len(found) == ledger["sampled"] == count  # nothing twice
    assert all(record["text"].startswith(f" {record['input']['a']}+") for record in found)
    assert ledger["peak_active"] <= 16
