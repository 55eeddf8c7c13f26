"""Counts and times of one request, and what they add to the metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from brimful.outcome import Cause, Failure
from brimful.profile import get_profile
from brimful.profile.prices import Price
from brimful.request import Request
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.sampling.stats import RequestStats, cost_of, log_attempt, model_of
from support.metrics import samples

PROFILE = get_profile("acs")
FAILED = Classification(Kind.TRANSIENT, cause=Cause.TIMEOUT, message="too late", status=504, request_id="req-9")


@pytest.fixture
def port() -> Iterator[int]:
    yield metrics.serve(0, key_tag="k")
    metrics.stop()


def stats(**fields: Any) -> RequestStats:
    return RequestStats(Request.parse({"prompt": "a", "max_tokens": 8, "id": "q", **fields}, PROFILE), PROFILE)


def test_an_outcome_has_the_sums_of_all_attempts() -> None:
    mine = stats()
    for waited_s in (1.0, 0.2500004):
        mine.granted(waited_s)
        mine.sent(9)
        mine.attempted(FAILED, 2.5)
        mine.ended(9, metered=False)
        mine.failed(Cause.TIMEOUT)
        mine.backing_off(0.5)
    outcome = mine.outcome("host:1", failure=Failure(Cause.TIMEOUT, "too late"))
    assert (outcome.id, outcome.worker, outcome.attempts, outcome.retries) == ("q", "host:1", 2, {"timeout": 2})
    assert (outcome.waited_s, outcome.provider_s, outcome.retrying_s) == (1.25, 5.0, 1.0)
    assert outcome.provider_request_ids == ["req-9", "req-9"]
    assert outcome.unmetered_tokens == 18
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    assert outcome.started_at <= outcome.ended_at


def test_the_first_byte_sent_is_the_request_s_start() -> None:
    mine = stats()
    assert mine.started_at is None
    mine.sent(9)
    began = mine.started_at
    mine.sent(9)  # moved to another connection
    assert (mine.started_at, mine.attempts) == (began, 2)
    assert mine.unmetered_tokens == 9, "it is one attempt's hold"


def test_an_answer_without_an_id_adds_none() -> None:
    mine = stats()
    mine.attempted(Classification(Kind.SUCCESS), 0.5)
    assert (mine.provider_request_ids, mine.provider_s) == ([], 0.5)


@pytest.mark.parametrize(
    ("sent", "metered", "beyond", "left"),
    [(True, True, 0, 0), (True, True, 4, 4), (True, False, 0, 9), (False, True, 0, 0), (False, True, 4, 0)],
)
def test_tokens_that_nobody_counted(sent: bool, metered: bool, beyond: int, left: int) -> None:
    mine = stats()
    mine.granted(0.0)
    if sent:
        mine.sent(9)
    mine.ended(9, metered=metered, beyond=beyond)
    assert (mine.unmetered_tokens, mine.on_wire) == (left, False)


def test_a_grant_begins_an_attempt_of_its_own() -> None:
    mine = stats()
    mine.sent(9)
    mine.granted(0.0)
    mine.sent(9)
    assert mine.unmetered_tokens == 18


@pytest.mark.parametrize(("mode", "charged"), [("completion", 18), ("job", 0)])
def test_each_death_may_have_cost_what_the_request_holds(
    mode: str, charged: int, caplog: pytest.LogCaptureFixture
) -> None:
    mine = stats(mode=mode)
    mine.died(0, 9)
    assert caplog.messages == []
    mine.died(2, 9)
    assert mine.unmetered_tokens == charged
    assert caplog.messages == ["workers died while they sampled request q: 2 more"]


def test_many_stale_grants_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    mine = stats()
    for count in range(1, 8):
        mine.stale_grant("api.example")
        assert len(caplog.messages) == int(count >= 5)
    assert "api.example is slow to connect to" in caplog.messages[0]
    assert mine.stale_grants == 7


def test_a_failed_attempt_is_logged_with_what_support_asks_for(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test_sampling_stats")
    with caplog.at_level(logging.DEBUG):
        log_attempt(log, "q", 3, FAILED)
        log_attempt(log, "q", 4, Classification(Kind.TRANSIENT, cause=Cause.CONNECTION))
    first, second = (vars(record) for record in caplog.records)
    assert caplog.messages[0] == "request q, attempt 3: timeout: too late"
    assert [first[name] for name in ("attempt", "cause", "status")] == [3, Cause.TIMEOUT, 504]
    assert [each["provider_request_ids"] for each in (first, second)] == [["req-9"], []]


def test_what_a_request_adds_to_the_metrics(port: int) -> None:
    before = samples(port)
    mine = stats()
    mine.stale_grant("api.example")
    mine.granted(1.5)
    mine.sent(9)
    mine.attempted(FAILED, 2.5)
    mine.backing_off(0.25)
    mine.granted(1.5)
    mine.sent(9)
    mine.attempted(Classification(Kind.SUCCESS), 0.5)
    usage = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    mine.outcome("w", completion={"choices": [{}, {}], "usage": usage})
    stats(mode="job").outcome("w", failure=Failure(Cause.JOB_FAILED, "no"))
    stats().outcome("w", completion={"choices": [{}], "usage": None})
    after = samples(port)
    counted = [name for name in after if name.startswith("brimful_") and "_bucket{" not in name]
    added = {name: after[name] - before.get(name, 0.0) for name in counted if "_created{" not in name}
    assert {name: value for name, value in added.items() if value} == {
        'brimful_attempts_total{key="k",mode="completion",result="ok"}': 1,
        'brimful_attempts_total{key="k",mode="completion",result="timeout"}': 1,
        'brimful_attempt_seconds_count{key="k",mode="completion"}': 2,
        'brimful_attempt_seconds_sum{key="k",mode="completion"}': 3.0,
        'brimful_backoff_seconds_total{key="k"}': 0.25,
        'brimful_model_tokens_total{key="k",kind="prompt",model="llama-8b"}': 5,
        'brimful_requests_total{key="k",mode="job",result="job_failed"}': 1,
        'brimful_requests_total{key="k",mode="completion",result="ok"}': 2,
        'brimful_rollouts_total{key="k"}': 3,
        'brimful_stale_grants_total{key="k"}': 1,
        'brimful_starts_total{key="k",workload="batch"}': 2,
        'brimful_tokens_total{key="k",kind="prompt"}': 5,
        'brimful_wait_seconds_count{key="k",workload="batch"}': 2,
        'brimful_wait_seconds_sum{key="k",workload="batch"}': 3.0,
    }


def test_the_first_50_models_have_series_of_their_own(port: int) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    for number in range(60):
        stats(model=f"m{number}").outcome("w", completion={"choices": [{}], "usage": usage})
    found = [name for name in samples(port) if name.startswith("brimful_model_tokens_total{") and "prompt" in name]
    assert len(found) <= 51, "other tests of this process may have named models before"
    assert any('model="(others)"' in name for name in found)


def test_the_cost_of_a_completion() -> None:
    priced = PROFILE.model_copy(update={"prices": {"llama-8b": Price(input=10.0, output=40.0, batch=0.5)}})
    completion = {"model": "llama-8b", "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}
    fields = {"prompt": "a", "max_tokens": 8}
    batch = Request.parse(fields, priced)
    interactive = Request.parse({**fields, "workload": "interactive"}, priced)
    assert model_of(batch, priced) == "llama-8b"
    assert model_of(Request.parse({**fields, "model": "other"}, priced), priced) == "other"
    assert cost_of(interactive, priced, completion) == pytest.approx(0.014)
    assert cost_of(batch, priced, completion) == pytest.approx(0.007)
    assert cost_of(batch, priced, {**completion, "usage": None}) is None
    assert cost_of(batch, PROFILE, completion) is None
