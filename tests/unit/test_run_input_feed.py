"""``--budget-tokens`` and a pace: which requests a run still asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import InputError
from brimful.packing.units import Recovered, Unit
from brimful.request import Request
from brimful.run.input.budget import Budget
from brimful.run.input.line_pace import LinePace
from brimful.run.output.sidecar import Sidecar
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, prompts, run, write_lines


def test_a_budget_holds_the_tokens_of_lines_in_flight() -> None:

    request = Request.parse({"prompt": [1, 2], "max_tokens": 8}, PROFILE)
    budget = Budget(25, used=4, profile=PROFILE)
    assert [budget.take(line, request, 1) for line in (1, 2, 3)] == [True, True, False]
    budget.free(1)
    budget.used = 10
    assert budget.holding
    assert not budget.take(3, request, 1)


def test_little_is_in_flight_until_the_provider_has_counted_a_prompt() -> None:
    """100 digits may be 100 tokens; a line alone is sent if it probably fits."""
    request = Request.parse({"prompt": "7" * 100, "max_tokens": 1}, PROFILE)
    budget = Budget(60, profile=PROFILE)
    assert budget.take(1, request, 1)
    assert not budget.take(2, request, 1)
    budget.learn([1], 50)
    budget.free(1)
    budget.used = 51
    assert not budget.take(2, request, 1)
    assert not budget.holding
    budget = Budget(1000, profile=PROFILE)
    assert sum(budget.take(line, request, 1) for line in range(30)) == 9
    budget.learn([0], 25)
    assert [budget.take(line, request, 1) for line in range(9, 40)].count(True) > 15


def test_a_prompt_that_is_asked_in_several_requests_is_held_as_often() -> None:
    request = Request.parse({"prompt": [1] * 10, "max_tokens": 1, "n": 4}, PROFILE)
    assert Budget(44, profile=PROFILE).take(1, request, 4, 4)
    assert not Budget(43, profile=PROFILE).take(1, request, 4, 4)


def test_the_budget_of_prompts_of_digits_is_exceeded_by_what_is_in_flight_at_most(tmp_path: Path) -> None:
    """A provider that counts a token for every other character: four times what English prose would have."""
    texts = [f"{line:03d} " * 80 for line in range(30)]
    source, out = write_lines(tmp_path / "in.txt", texts), tmp_path / "out.jsonl"
    driver = FakeDriver(ahead=1, prompt_tokens=lambda unit: len(unit.request.prompts[0]) // 2)
    summary = run(options(source, out=out, budget_tokens=800, read={"defaults": {"max_tokens": 2}}), driver)
    assert summary is not None
    assert summary.ended == "budget"
    assert 400 <= summary.tokens <= 800


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


async def test_lines_wait_until_another_process_lets_them_in(tmp_path: Path) -> None:
    file, stopped = tmp_path / "pace", False
    file.write_text("2\n")
    pace = LinePace(file)
    await pace.wait(2, lambda: stopped)
    waiting = [asyncio.ensure_future(pace.wait(line, lambda: stopped)) for line in (3, 9)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    file.write_text("8\n")
    await asyncio.wait_for(waiting[0], 60)
    assert not waiting[1].done()
    stopped = True
    await asyncio.wait_for(waiting[1], 60)
    stopped = False
    file.unlink()
    with pytest.raises(InputError, match="--pace"):
        await pace.wait(9, lambda: stopped)
