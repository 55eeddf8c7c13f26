"""A run's counts: the same in its summary, in its files and in its report, whatever happened on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from brimful.packing.slot_model import Limits
from brimful.run.checks.options import CheckOptions, load_checks
from brimful.run.display.summary import Summary
from brimful.run.input.columns import Keep
from brimful.run.input.formats import ColumnNames
from brimful.run.input.sweep.grid import make_sweep
from brimful.run.input.templates.template import load_templates
from brimful.run.report.reading import read_run
from brimful.run.validate import validate
from support.fake_driver import FakeDriver
from support.live_driver import LiveDriver
from support.runs import PROFILE, options, prompts, records, run

HOOK = """
from brimful.hooks import Again

def check(line, completion):
    if line.columns["kind"] == HARD:
        raise Again("hard")
    if line.columns["kind"] == "second" and completion.tries < 2:
        raise Again("again")
    return {"seen": completion.tries}
"""


def _checks(tmp_path: Path, hard: str) -> CheckOptions | None:
    """Each time with another length: Python takes a module of the same size and second for unchanged."""
    (tmp_path / "hook.py").write_text(HOOK.replace("HARD", repr(hard)))
    return load_checks(None, f"{tmp_path / 'hook.py'}:check")


def _recount(summary: Summary, out: Path) -> None:
    rollouts, table = records(Path(f"{out}.rollouts.jsonl")), pyarrow.parquet.read_table(out)
    errors = records(path) if (path := Path(f"{out}.errors.jsonl")).exists() else []
    rejected = records(Path(f"{out}.rejected.jsonl"))
    places = {(each["id"], each["prompt_index"], each["choice_index"]) for each in rollouts}
    assert summary.rollouts == len(rollouts) == len(places) == table.num_rows
    assert (summary.succeeded, summary.rollouts) == (len({each["id"] for each in rollouts}), 2 * summary.succeeded)
    assert summary.failed_by_cause == Counter({each["id"]: each["cause"] for each in errors}.values())
    assert summary.failed == len({each["id"] for each in errors})
    assert summary.succeeded + summary.failed == summary.requests
    assert summary.tokens == sum(each["usage"]["total_tokens"] for each in rollouts)
    checks: Any = summary.checks
    assert (checks["accepted"], checks["rejected"]) == (len(rollouts), len(rejected))
    assert checks["rejected_tokens"] == sum(each["usage"]["total_tokens"] for each in rejected)
    assert sum(each["rollouts"] for each in summary.sweep) == len(rollouts)
    tries = Counter(each["try"] for each in rejected)
    assert set(tries) == set(range(1, max(tries) + 1))
    assert sum(each.get("tries", 1) - 1 for each in rollouts) == sum(
        (each["id"], each["prompt_index"], each["choice_index"]) in places for each in rejected
    )
    figures = read_run(out).figures
    assert (figures.lines, figures.sampled_lines, figures.failed_lines) == (
        summary.requests, summary.succeeded, summary.failed,
    )  # fmt: skip
    assert (figures.counts.rollouts, figures.counts.tokens) == (summary.rollouts, summary.tokens)
    assert dict(figures.causes) == summary.failed_by_cause


@pytest.mark.parametrize("die_after", [2, 5])
def test_the_counts_of_a_run_equal_each_other(tmp_path: Path, die_after: int) -> None:
    rows = [f"k{place},{('plain', 'second', 'hard')[place % 3]},what is {place}?" for place in range(12)]
    source, out = tmp_path / "in.csv", tmp_path / "out.parquet"
    source.write_text("\n".join(["key,kind,q", *rows, "k1,plain,the id of another", "short"]) + "\n")
    asked = options(
        source,
        out=out,
        read={
            "defaults": {"max_tokens": 8, "n": 2},
            "names": ColumnNames(id="key"),
            "templates": load_templates("Q: {q}", None, None, None),
            "sweep": make_sweep({"temperature": [0, 1]}, {}, None),
        },
        keep=Keep.parse("kind"),
        checks=_checks(tmp_path, "hard"),
    )
    dry = validate(asked.read, PROFILE)
    driver = LiveDriver(die_after=die_after)
    assert run(asked, driver) is None
    summary = run(asked, LiveDriver(stored=driver.stored))
    assert summary is not None
    assert (summary.requests, summary.succeeded, summary.failed) == (26, 16, 10)
    assert (dry.requests, dry.bad, dry.rollouts) == (26, 2, 48)
    _recount(summary, out)
    retried = replace(asked, checks=_checks(tmp_path, "nothing"), retry_errors=True)
    driver = LiveDriver(die_after=die_after)
    assert run(retried, driver) is None
    summary = run(retried, LiveDriver(stored=driver.stored))
    assert summary is not None
    assert (summary.requests, summary.succeeded, summary.failed) == (26, 24, 2)
    _recount(summary, out)
    table = pyarrow.parquet.read_table(out).to_pylist()
    assert {(row["kind"], row["hook.seen"]) for row in table} == {("plain", 1), ("second", 2), ("hard", 4)}
    assert not {"key", "q"} & set(table[0])


def test_a_run_is_measured_by_the_limits_in_force(tmp_path: Path) -> None:
    out, driver = tmp_path / "out.jsonl", FakeDriver()
    driver.status.limits = Limits(slots=8, starts=60, window_s=10.0)
    summary = run(options(prompts(tmp_path), out=out), driver)
    assert summary is not None
    assert summary.allowed == {"starts": 60, "starts_per_window": 60, "window_s": 10.0, "slots": 8}
    assert "of 8 slots, 10 of 60 starts possible" in dict(summary.rows())["achieved"]
    figures = read_run(out).figures
    assert figures.sidecar is not None
    assert figures.sidecar.limits == {"slots": 8, "starts": 60, "window_s": 10.0}
