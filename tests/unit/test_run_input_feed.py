"""``--budget-tokens``: which requests a run still asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brimful.packing.units import Recovered, Unit
from brimful.request import Request
from brimful.run.input.feed import Budget
from brimful.run.output.sidecar import Sidecar
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, prompts, run


def test_a_budget_holds_the_tokens_of_lines_in_flight() -> None:

    request = Request.parse({"prompt": "abcd", "max_tokens": 8}, PROFILE)
    budget = Budget(25, used=4)
    assert request.hold == 10
    assert [budget.take(line, request, 1) for line in (1, 2, 3)] == [True, True, False]
    budget.free(1)
    budget.used = 10
    assert budget.holding
    assert not budget.take(3, request, 1)


def test_a_token_budget_is_never_exceeded(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 30)
    # 6 tokens each are used, 10 are held while it runs.
    summary = run(options(source, out=out, budget_tokens=100), FakeDriver(ahead=1))
    assert summary is not None
    assert summary.exit_code == 4
    assert 84 <= summary.tokens <= 100
    assert summary.ended == "budget"
    summary = run(options(source, out=out, budget_tokens=1000), FakeDriver(ahead=1))
    assert summary is not None
    assert (summary.exit_code, summary.rollouts) == (0, 30)


def test_attempts_without_usage_use_the_budget_up_in_every_try(tmp_path: Path) -> None:
    """Each line costs its 6 tokens, and 10 more for an attempt that timed out before."""
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 30)

    def driver(**more: Any) -> FakeDriver:
        def answer(unit: Unit, *_: int) -> str:
            made.status.unmetered_tokens += 10
            return "text"

        made = FakeDriver(answer, ahead=1, **more)
        return made

    summary = run(options(source, out=out, budget_tokens=100), driver())
    assert summary is not None
    assert (summary.ended, summary.exit_code) == ("budget", 4)
    assert (summary.rollouts, summary.tokens, summary.unmetered_tokens) == (6, 36, 60)
    assert "up to 60 in attempts" in dict(summary.rows())["tokens"]
    summary = run(options(source, out=out, budget_tokens=150), driver())
    assert summary is not None
    assert (summary.rollouts, summary.tokens, summary.unmetered_tokens) == (9, 54, 90)
    # Outcomes that an earlier submitter did not collect count too, and so do those of a try that was killed.
    assert (
        run(options(source, out=out, budget_tokens=500), driver(recovered=Recovered([], frozenset(), 40), die_after=1))
        is None
    )
    sidecar = Sidecar.load(out.with_name("out.jsonl.run.json"))
    assert sidecar is not None
    assert max(one["unmetered_tokens"] for one in sidecar.tries) == 140
    summary = run(options(source, out=out, budget_tokens=216), driver())
    assert summary is not None
    assert (summary.rollouts, summary.unmetered_tokens) == (11, 150)
