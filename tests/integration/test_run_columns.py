"""Columns of the input through a real fleet: never sent, and in every record, whoever is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, records
from support.fleets import declare_new
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-5c1d20"


def _columns(number: int) -> dict[str, Any]:
    """As in a table of questions, with quotes, separators and line ends."""
    return {"answer": str(number + number), "tags": f'sum, "quoted"\nline {number}', "source": None}


def _write(path: Path, count: int) -> Path:
    lines = [{"id": n, "prompt": f"What is {n} plus {n}?", **_columns(n)} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_lines_with_answers_are_packed_and_come_out_joined(tmp_path: Path) -> None:
    source, out = _write(tmp_path / "in.jsonl", 400), tmp_path / "out.csv"
    with StrictGatewayProcess() as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        done = brimful("run", source, "-o", out, "--max-tokens", "8", "--workers", "1", "--json", **env)
        ledger = gateway.ledger()
    assert done.returncode == 0, done.stderr
    assert "`answer`, `tags` and `source` are carried through, not sent" in done.stderr
    assert ledger["fields"] == ["max_tokens", "model", "prompt"]
    assert ledger["arrivals"] <= 100, ledger["arrivals"]  # 400 where each line is a request of its own
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [str(n) for n in range(400)]
    for number, row in enumerate(rows):
        assert {name: row[name] or None for name in ("answer", "tags", "source")} == _columns(number)
        assert row["text"] == f" What is {number} plus {number}? → 0"


def test_every_record_of_a_stream_has_its_columns_though_the_run_was_killed(tmp_path: Path, valkey: Valkey) -> None:
    source, out, count = _write(tmp_path / "in.jsonl", 120), tmp_path / "out.jsonl", 120
    with StrictGatewayProcess(latency=0.3) as gateway:
        env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        declare_new(valkey, KEY)
        arguments = ["run", "-", "-o", out, "--max-tokens", "8", "--pack", "off"]
        with Running("worker", **env) as worker:
            with Running(*arguments, stdin=source, **env) as run:
                wait_until(lambda: out.exists() and out.stat().st_size > 0, "the first record", timeout=60)
                os.kill(run.process.pid, signal.SIGKILL)
                run.process.wait()
            there = len(records(out))
            # Workers go on without it, so that Redis holds what nobody has written down.
            wait_until(lambda: gateway.ledger()["sampled"] >= there + 8, "more to be sampled", timeout=60)
            with Running(*arguments, stdin=source, **env) as run:
                output, _ = run.process.communicate(timeout=120)
                assert run.process.returncode == 0, output
            worker.look()
            assert worker.interrupt() in (0, 130)
        ledger = gateway.ledger()
    assert there < count
    assert sorted(record["id"] for record in records(out)) == list(range(count))
    assert all(record["input"] == _columns(record["id"]) for record in records(out))
    assert ledger["sampled"] == count  # nothing twice
    assert ledger["peak_active"] <= 16
