"""Prices of models, and budgets of money."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.config import Settings
from brimful.errors import InputError, SettingError
from brimful.profile import Price, Tokens, get_profile
from brimful.request import Request
from brimful.run.input.budget import Budget
from brimful.run.prepare import prepare
from brimful.run.validate import validate
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, prompts, records, run

PRICED = PROFILE.model_copy(update={"prices": {"llama-8b": Price(input=1.0, output=10.0, batch=0.5)}})


def test_cached_tokens_and_batches_cost_less() -> None:
    price = Price(input=2.0, cached=0.5, output=8.0, batch=0.5)
    tokens = Tokens()
    for _ in range(1000):
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}
        tokens.add(usage)
    assert price.cost(tokens, batch=False) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.1 * 8)
    assert price.cost(tokens, batch=True) == pytest.approx(1.1)
    assert Price(input=2.0, output=8.0).cost(Tokens(prompt=10**6, cached=10**6), batch=True) == pytest.approx(2.0)


def test_a_file_of_prices_goes_before_the_profile_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('["gpt-4o"]\ninput = 2.5\noutput = 10\ncached = 1.25\n["gpt-4*"]\ninput = 1\noutput = 2\n')
    monkeypatch.setenv("BRIMFUL_PRICES", str(file))
    own = tmp_path / "profiles.toml"
    own.write_text('[openai.prices."gpt-4o"]\ninput = 9\noutput = 9\n[openai.prices."gpt-5*"]\ninput = 5\noutput = 5\n')
    monkeypatch.setenv("BRIMFUL_PROFILES", str(own))
    profile = Settings.load(provider="openai").profile
    assert profile.price("gpt-5") == Price(input=5, output=5)
    assert profile.price("gpt-4o") == Price(input=2.5, output=10, cached=1.25)
    assert profile.price("gpt-4o-mini") == Price(input=1, output=2)
    assert profile.price("other") is None
    assert profile.cost({("other",): Tokens(1)}, batch=False) is None
    for text, fault in (("x", "not TOML"), ('["m"]\ninput = -1\noutput = 1\n', r"\[m.input\]"), ("a = 1", r"\[a\]")):
        file.write_text(text)
        with pytest.raises(SettingError, match=f"BRIMFUL_PRICES.*{fault}"):
            _ = Settings.load().profile


def test_a_budget_of_money_is_not_exceeded(tmp_path: Path) -> None:
    source, out = prompts(tmp_path, 30), tmp_path / "out.jsonl"
    each = 0.5 * (4 * 1.0 + 2 * 10.0) / 1e6  # what FakeDriver counts
    asked = options(source, out=out, budget=10.5 * each)
    summary = run(asked, FakeDriver(ahead=1), profile=PRICED)
    assert summary is not None
    assert (summary.ended, summary.exit_code) == ("budget", 4)
    # 8 tokens are held for each line, of which 2 are used.
    assert summary.rollouts in (7, 8)
    assert summary.cost == pytest.approx(summary.rollouts * each)
    assert dict(summary.rows())["cost"] == f"{summary.cost:.4f}"
    again = run(options(source, out=out, budget=1.0), FakeDriver(ahead=1), profile=PRICED)
    assert again is not None
    assert (again.rollouts, again.cost) == (30, pytest.approx(30 * each))


@pytest.mark.parametrize("asked", ["llama-8b", ""])
def test_a_model_that_answers_by_another_name_costs_what_was_asked_for(tmp_path: Path, asked: str) -> None:
    """OpenAI answers as gpt-4o-2024-08-06. ``asked`` is empty for what an earlier try had left in Redis."""
    source, out = prompts(tmp_path, 30), tmp_path / "out.jsonl"
    each = 0.5 * (4 * 1.0 + 2 * 10.0) / 1e6
    driver = FakeDriver(ahead=1, model="llama-8b-2026-01-01", asked_model=asked)
    summary = run(options(source, out=out, budget=10.5 * each), driver, profile=PRICED)
    assert summary is not None
    assert (summary.ended, summary.unpriced) == ("budget", [])
    assert summary.rollouts in (7, 8)
    assert summary.cost == pytest.approx(summary.rollouts * each)
    assert records(out)[0]["model"] == "llama-8b-2026-01-01"
    again = run(options(source, out=out, budget=10.5 * each), FakeDriver(ahead=1), profile=PRICED)
    assert again is not None
    assert again.cost == pytest.approx(summary.cost, abs=2 * each)


def test_counts_that_cannot_be_right_cost_nothing() -> None:
    tokens = Tokens()
    for cached in ("3", -4, 1.5, None, True, [], 7):
        tokens.add({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}})
    assert (tokens.prompt, tokens.completion) == (35, 7)
    assert 7 <= tokens.cached <= 8


def test_own_prices_go_before_the_profile_s_and_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('["llama-8b"]\ninput = 3\noutput = 4\n')
    monkeypatch.setenv("BRIMFUL_PRICES", str(file))
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[acs.prices."llama-8b"]\ninput = 9\noutput = 9\n[acs.prices.other]\ninput = 9\noutput = 9\n')
    settings = Settings.load(provider="acs", profiles=profiles)
    mine, other = Price(input=3, output=4), Price(input=9, output=9)
    assert (settings.profile.price("llama-8b"), settings.profile.price("other")) == (mine, other)
    for theirs in (PROFILE, PRICED):  # what the workers have published
        assert settings.with_profile(theirs, 9.0).profile.price("llama-8b") == mine


def test_a_budget_of_money_needs_prices(tmp_path: Path) -> None:
    asked = options(prompts(tmp_path, 3), out=tmp_path / "out.jsonl", budget=1.0)
    with pytest.raises(InputError, match=r"--budget: the model 'llama-8b' has no price: set BRIMFUL_PRICES"):
        prepare(asked, PROFILE)
    budget = Budget(None, money=1.0, profile=PRICED)
    with pytest.raises(InputError, match="'llama-70b' has no price"):
        budget.take(1, Request.parse({"prompt": "a", "model": "llama-70b"}, PROFILE), 1)


def test_the_cost_at_most_is_estimated(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("x" * 4000 + "\n")
    found = validate(options(source, out="-").read, PRICED)
    assert found.cost_at_most == pytest.approx(0.5 * (1000 * 1.0 + 8 * 10.0) / 1e6)
    assert "cost" in dict(found.rows())
    assert validate(options(source, out="-").read, get_profile("acs")).cost_at_most is None
    asked = options(source, out="-", read={"defaults": {"max_tokens": 8, "n": 3}}).read
    each_alone = PRICED.model_copy(update={"max_n": 1})  # the prompt is paid for with each choice
    assert validate(asked, each_alone).cost_at_most == pytest.approx(0.5 * 3 * (1000 * 1.0 + 8 * 10.0) / 1e6)
    assert validate(asked, PRICED).cost_at_most == pytest.approx(0.5 * (1000 * 1.0 + 3 * 8 * 10.0) / 1e6)
