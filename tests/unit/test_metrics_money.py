"""Tokens and money by model and caller, and what is left of budgets, as the metrics show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from brimful.names import Workload
from brimful.profile import get_profile
from brimful.profile.prices import Price
from brimful.request import Request
from brimful.state.callers.tokens import CallerRecord
from brimful.state.status import Status
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.metrics.kinds import OTHERS, BoundedLabel
from brimful_worker.sampling.stats import RequestStats
from brimful_worker.serve.callers.usage import Account, Usage
from support.metrics import samples

PRICES = {"dear": Price(input=10.0, output=40.0, batch=0.5)}
PROFILE = get_profile("openai").model_copy(update={"prices": PRICES})
COMPLETION = {"model": "dear-2026", "choices": [{}], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}


@pytest.fixture
def port() -> Iterator[int]:
    yield metrics.serve(0, key_tag="k")
    metrics.stop()


def asked(model: str, workload: Workload = Workload.INTERACTIVE) -> RequestStats:
    fields = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "workload": workload}
    return RequestStats(Request.parse(fields, PROFILE), PROFILE)


def test_tokens_and_cost_by_model(port: int) -> None:
    asked("dear").outcome("w1", completion=COMPLETION)
    asked("dear", Workload.BATCH).outcome("w1", completion=COMPLETION)
    asked("unpriced").outcome("w1", completion={**COMPLETION, "model": "unpriced"})
    found = samples(port)
    assert found['brimful_model_tokens_total{key="k",kind="prompt",model="dear"}'] == 2000
    assert found['brimful_model_tokens_total{key="k",kind="completion",model="unpriced"}'] == 100
    assert found['brimful_model_cost_total{key="k",model="dear"}'] == pytest.approx(0.014 * 1.5)
    assert found['brimful_model_cost_total{key="k",model="unpriced"}'] == 0
    assert found['brimful_cost_total{key="k"}'] == pytest.approx(0.014 * 1.5)


def test_models_beyond_the_most_share_a_series() -> None:
    label = BoundedLabel(2)
    assert [label(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHERS, "a", OTHERS]


def test_what_is_left_of_the_fleet_s_budget(port: int) -> None:
    status = Status(
        tag="k",
        epoch="e",
        rebuilding=False,
        slots=16,
        slots_used=0,
        cooling=0,
        starts=None,
        starts_used=0,
        window_s=60.0,
        tokens=None,
        tokens_used=0,
        budget=1000,
        budget_spent=300,
        waiting={},
        pause_s=0.0,
        pause_reason=None,
        circuit_breaker="closed",
        failures=0,
        limits={},
        overridden=(),
    )
    metrics.fleet_status(status)
    assert samples(port)['brimful_budget_tokens{key="k"}'] == 1000
    assert samples(port)['brimful_budget_left_tokens{key="k"}'] == 700
    metrics.fleet_status(replace(status, budget_spent=1200))
    assert samples(port)['brimful_budget_left_tokens{key="k"}'] == 0
    metrics.fleet_status(replace(status, budget=None, budget_spent=0))
    assert samples(port)['brimful_budget_tokens{key="k"}'] == 0


def test_a_caller_s_cost_and_what_is_left_of_its_budget(port: int) -> None:
    usage = Usage("")
    ann, bob = CallerRecord("ann", "digest", 0.0, budget_tokens=5000), CallerRecord("bob", "digest", 0.0)
    account = Account()
    with usage.request(ann, 2000, account):
        usage.show_budgets([ann, bob])
        assert samples(port)['brimful_caller_budget_left_tokens{caller="ann",key="k"}'] == 3000
        account.sent, account.cost = True, 0.25
    usage.show_budgets([ann, bob])
    found = samples(port)
    assert found['brimful_caller_cost_total{caller="ann",key="k"}'] == 0.25
    assert found['brimful_caller_budget_tokens{caller="ann",key="k"}'] == 5000
    assert found['brimful_caller_budget_left_tokens{caller="ann",key="k"}'] == 3000  # it had no answer
    assert not any("budget" in name and "bob" in name for name in found)
    usage.show_budgets([bob, replace(ann, budget_tokens=0)])
    assert not any("budget" in name and "ann" in name for name in samples(port)), "its budget was removed"
    usage.show_budgets([ann])
    assert samples(port)['brimful_caller_budget_tokens{caller="ann",key="k"}'] == 5000
