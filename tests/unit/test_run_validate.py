"""``brimful validate``: counts, packing, limits and times of an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.cli.commands import run_command
from brimful.run.input.reader import ReadOptions
from brimful.run.input.sources import Source
from brimful.run.validate import Validation, shown_body, validate
from support.runs import PROFILE, write_lines


def _validate(path: Path, defaults: dict[str, Any] | None = None, **more: Any) -> Validation:
    return validate(ReadOptions((Source(str(path)),), defaults=defaults or {"max_tokens": 32}), PROFILE, **more)


def test_counts_limits_and_times(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": f"say {line}"} for line in range(2000)])
    found = _validate(path)
    assert (found.lines, found.requests, found.rollouts, found.tokens_at_most) == (2000, 2000, 2000, 64_000)
    assert (found.calls_off, found.calls_packed, found.prompts_per_call) == (2000, 2, 1000)
    assert found.turning_s == pytest.approx(1.6)
    assert found.binds == "starts bind"
    assert found.seconds_off == pytest.approx(181.0)  # 1,800 at once in three windows, the last 200 in the fourth
    assert found.first == {"model": "llama-8b", "max_tokens": 32, "prompt": "say 0"}
    slow = _validate(path, latency_s=10.0)
    assert slow.binds == "slots bind"
    assert slow.seconds_off == pytest.approx(2000 / 16 * 10)


def test_a_short_run_takes_whole_rounds_of_the_slots(tmp_path: Path) -> None:
    found = _validate(write_lines(tmp_path / "in.jsonl", [{"prompt": f"say {line}"} for line in range(17)]))
    assert found.seconds_off == pytest.approx(2.0)  # 16 API calls of 1 s, then the last one
    assert "in long runs starts bind while" in dict(found.rows())["limits"]
    assert "(in this one, assuming 1 s: slots bind)" in dict(found.rows())["limits"]


def test_split_lines_pack_keys_and_bad_lines(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "n": 2000},
        {"prompt": "b"},
        {"prompt": "c", "model": "other"},
        "{",
        {"n": 0, "prompt": "x"},
    ]
    found = _validate(write_lines(tmp_path / "in.jsonl", lines))
    assert (found.requests, found.bad, found.split) == (5, 2, 1)
    assert found.calls_off == 2 + 2
    assert found.models == {"llama-8b": 2, "other": 1}
    assert [fault.split(": ")[0] for fault in found.faults] == [f"{tmp_path / 'in.jsonl'}:{line}" for line in (4, 5)]
    assert _validate(tmp_path / "in.jsonl", pack="off").prompts_per_call == 1


def test_a_long_first_request_is_cut() -> None:
    text = shown_body({"prompt": "x" * 10_000, "many": list(range(100)), "odd": "\ud800"})
    assert len(text) < 3000
    assert "(10,000 characters)" in text


def test_a_command_line_of_a_rehearsal_may_be_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, said = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}]), []
    for more in ([], ["--rehearse"]):
        assert run_command(["validate", str(path), "--max-tokens", "8", *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
