"""Tables as inputs of a real run: killed, resumed, and joined to their columns."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.commands import Running, brimful, records
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

KEY = "sk-canary-91be04"
COUNT = 120


def _row(number: int) -> dict[str, Any]:
    tags = f'sum, "quoted"\nline {number}'
    return {"key": number, "question": f"What is {number} plus {number}?", "answer": str(2 * number), "tags": tags}


def _shards(folder: Path) -> Path:
    """A folder of Parquet files."""
    (folder / "shards").mkdir()
    for shard in range(3):
        rows = [_row(number) for number in range(shard * COUNT // 3, (shard + 1) * COUNT // 3)]
        pq.write_table(pa.Table.from_pylist(rows), folder / "shards" / f"{shard}-of-3.parquet", row_group_size=11)
    return folder / "shards"


def test_a_table_s_run_is_killed_and_typed_again(tmp_path: Path) -> None:
    source = _shards(tmp_path)
    out = source / "out.jsonl"  # in the folder of the shards: it must not be read as one of them
    columns = ("--prompt-column", "question", "--id-column", "key")
    arguments = ["run", source, "-o", out, *columns, "--max-tokens", "8", "--pack", "off", "--workers", "1"]
    with StrictGatewayProcess(latency=0.3) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        with Running(*arguments, **env) as run:
            wait_until(lambda: out.exists() and out.stat().st_size > 0, "the first record", timeout=90)
            os.kill(run.process.pid, signal.SIGKILL)
            run.process.wait()
        there = len(records(out))
        done = brimful(*arguments, **env)
        ledger = gateway.ledger()
    assert done.returncode == 0, done.stderr
    assert there < COUNT
    found = {record["line"]: record for record in records(out)}
    assert len(records(out)) == len(found) == COUNT
    for line, record in found.items():
        row = _row(line - 1)
        assert (record["id"], record["input"]) == (row["key"], row)
        assert record["text"].startswith(f" {row['question']} → ")
    assert ledger["fields"] == ["max_tokens", "model", "prompt"]
    assert ledger["peak_active"] <= 16
