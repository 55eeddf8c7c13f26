"""``--budget-tokens``: which requests a run still asks."""

from __future__ import annotations

from pathlib import Path

from brimful.request import Request
from brimful.run.input.feed import Budget
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
