"""What an outcome means for the lines of its request."""

from __future__ import annotations

import time
from typing import Any

import pytest

from brimful.dispatch.outcomes import Outcomes, SameRefusals, attempts_since
from brimful.dispatch.results import pause_s
from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest, slices_of
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Delivered, DriveStatus, Failed, PackOption, Unit
from brimful.request import Request
from brimful_worker.shards.store import between_steps_s
from support.packed import packed
from support.runs import PROFILE


def test_a_refused_pack_is_split_and_counted() -> None:
    profile, status = PROFILE, DriveStatus()
    sizer = PackSizer(Limits(16, 600, 60.0), 120.0)
    batcher = Batcher(profile, "auto", sizer, SlotModel(Limits(16, 600, 60.0)))
    units = [Unit(line, str(line), Request.parse({"prompt": "a", "max_tokens": 8}, profile)) for line in (1, 2)]
    pairs = [pair for unit in units for pair in slices_of(unit, profile)]
    packed = PackedRequest("r", pairs[0][0], tuple(each for _, each in pairs))
    failure = Failure(Cause.BAD_REQUEST, "400: no", 400, permanent=True)
    outcome = Outcome("r", failure=failure, attempts=1, retries={"bad_request": 1}, started_at=None)
    assert Outcomes(batcher, sizer, status).records(packed, outcome) == []
    assert (status.split, status.packed, status.attempts, status.retries) == (1, 1, 1, {"bad_request": 1})


def test_the_same_refusal_of_every_request_is_noticed() -> None:
    wrong_key = Failure(Cause.BAD_REQUEST, "HTTP 400: API key not valid", 400, permanent=True)
    throttled = Failure(Cause.RATE_LIMITED, "HTTP 429", 429)
    too_long = Failure(Cause.BAD_REQUEST, "HTTP 400: 9000 tokens are too many", 400, permanent=True)
    filtered = Failure(Cause.CONTENT_FILTER, "HTTP 400: filtered", 400, permanent=True)

    def noticed(*ended: tuple[Failure | None, int]) -> Failure | None:
        refusals = SameRefusals()
        for failure, lines in ended:
            refusals.add(failure, lines)
        return refusals.failure

    assert noticed(*[(wrong_key, 1)] * 19) is None
    assert noticed(*[(wrong_key, 1)] * 19, (throttled, 1), (wrong_key, 1)) is wrong_key
    assert noticed(*[(wrong_key, 0)] * 63) is None
    assert noticed(*[(wrong_key, 0)] * 64) is wrong_key
    assert noticed((wrong_key, 125)) is wrong_key
    for other in (None, too_long, filtered):
        assert noticed((other, 1), *[(wrong_key, 1)] * 99) is None
        assert noticed(*[(wrong_key, 1)] * 5, (other, 1), *[(wrong_key, 1)] * 99) is None


def test_requests_of_another_model_are_tried_before_a_run_stops() -> None:
    """The first lines name a wrong model, though the others are good."""
    profile = PROFILE
    sizer = PackSizer(Limits(16, 600, 60.0), 120.0)
    batcher = Batcher(profile, "off", sizer, SlotModel(Limits(16, 600, 60.0)))
    outcomes = Outcomes(batcher, sizer, DriveStatus())
    no_model = Failure(Cause.BAD_REQUEST, "HTTP 404: no such model", 404, permanent=True)

    def request(line: int, model: str) -> PackedRequest:
        fields = {"prompt": "a", "max_tokens": 8, "model": model}
        unit = Unit(line, str(line), Request.parse(fields, profile))
        ((pack_key, part),) = slices_of(unit, profile)
        return PackedRequest(str(line), pack_key, (part,))

    wrong, good = [request(line, "wrong") for line in range(40)], request(40, "llama-8b")
    for one in wrong[:30]:
        outcomes.records(one, Outcome(one.id, failure=no_model))
    assert outcomes.refused is no_model
    assert not outcomes.refuses_all([wrong[30], good])
    batcher.add(good.slices[0].unit)
    assert not outcomes.refuses_all([])
    batcher.next(0.0, 0, True)
    outcomes.records(good, Outcome(good.id, failure=no_model))  # a wrong key, perhaps
    assert outcomes.refuses_all([good, wrong[31]])
    answer = {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}], "model": "llama-8b"}
    outcomes.records(good, Outcome(good.id, completion=answer))
    assert outcomes.refused is no_model, "it is why the run stops"


def test_a_success_after_many_refusals_ends_the_search() -> None:
    refusals, no_model = SameRefusals(), Failure(Cause.BAD_REQUEST, "HTTP 404: no such model", 404, permanent=True)
    refusals.add(no_model, 30)
    refusals.add(None)
    assert refusals.failure is None


def test_the_parts_of_a_pack_with_which_workers_died_are_suspect_to_the_end() -> None:
    profile, status = PROFILE, DriveStatus()
    sizer = PackSizer(Limits(16, 600, 60.0), 120.0)
    batcher = Batcher(profile, "auto", sizer, SlotModel(Limits(16, 600, 60.0)))
    units = [Unit(line, str(line), Request.parse({"prompt": "a", "max_tokens": 8}, profile)) for line in range(4)]
    pairs = [pair for unit in units for pair in slices_of(unit, profile)]
    packed = PackedRequest("r", pairs[0][0], tuple(each for _, each in pairs))
    outcomes = Outcomes(batcher, sizer, status)
    failure = Failure(Cause.WORKER_LOST, "2 workers died while they sampled it", permanent=True)
    parts = [packed]
    for count in (2, 4):
        for part in parts:
            assert not part.pack_key.suspect or count > 2
            assert outcomes.records(part, Outcome(part.id, failure=failure)) == []
        parts = [PackedRequest("s", *chosen) for _ in range(count) if (chosen := batcher.next(0.0, 0, True))]
        assert [len(part.slices) for part in parts] == [4 // count] * count
        assert all(part.pack_key.suspect for part in parts)
    [record] = outcomes.records(parts[0], Outcome("s", failure=failure))
    assert record.id == "0"


def test_attempts_before_this_submitter_are_not_counted() -> None:
    began = 1000.0
    for started, ended, attempts, counted in (
        (1001.0, 1002.0, 3, 3),
        (990.0, 999.0, 3, 0),
        (990.0, 1002.0, 1, 0),
        (990.0, 1002.0, 3, 2),
        (None, None, 0, 0),
    ):
        outcome = Outcome("r", attempts=attempts, started_at=started, ended_at=ended)
        assert attempts_since(outcome, began) == counted


@pytest.mark.parametrize(
    ("in_flight", "missing", "seconds"),
    [
        (249, 9, 0.0),
        (250, 9, 0.005),
        (1000, 250, 0.02),
        (4999, 9, 0.09998),
        (9000, 1, 0.1),
        (9000, 0, 0.0),
        (9000, -1, 0.0),
    ],
)
def test_outcomes_of_many_requests_are_read_together(in_flight: int, missing: int, seconds: float) -> None:
    assert pause_s(in_flight, missing) == pytest.approx(seconds)


@pytest.mark.parametrize(("in_hand", "seconds"), [(1, 0.005), (1000, 0.05), (5000, 0.1)])
def test_outcomes_of_many_requests_are_stored_together(in_hand: int, seconds: float) -> None:
    assert between_steps_s(in_hand) == pytest.approx(seconds)


def made(pack: PackOption = "auto", **more: Any) -> tuple[Outcomes, Batcher, PackSizer, DriveStatus]:
    limits = Limits(16, None, 60.0)
    status, sizer = DriveStatus(**more), PackSizer(limits, 120.0)
    batcher = Batcher(PROFILE, pack, sizer, SlotModel(limits))
    return Outcomes(batcher, sizer, status), batcher, sizer, status


def success(request: PackedRequest, **more: Any) -> Outcome:
    choices = [{"index": index, "text": "b", "finish_reason": "stop"} for index in range(request.choices)]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    return Outcome(request.id, {"choices": choices, "model": "m", "usage": usage}, **{"attempts": 1, **more})


def test_figures_are_sums_over_all_outcomes() -> None:
    outcomes, _, _, status = made()
    now = time.time()
    one, two = packed("1", 1, n=3), packed("2", 2, 3)
    known = {"started_at": now + 1, "unmetered_tokens": 5}
    outcomes.records(one, success(one, attempts=3, retries={"rate_limited": 1, "timeout": 1}, **known))
    outcomes.records(two, success(two, attempts=2, retries={"queue_full": 1}, **known))
    failure = Failure(Cause.TIMEOUT, "late")
    assert len(outcomes.records(one, Outcome("1", failure=failure, attempts=4, retries={"timeout": 4}, **known))) == 1
    assert (status.requests, status.packed, status.rollouts, status.failures) == (3, 1, 5, 1)
    assert (status.attempts, status.rate_limited, status.unmetered_tokens, status.tokens) == (9, 2, 15, 6)
    assert status.retries == {"rate_limited": 1, "timeout": 5, "queue_full": 1}
    outcomes.records(one, Outcome("1", {"choices": [], "usage": {"total_tokens": "7"}}, started_at=now - 9))
    assert status.tokens == 6


def test_what_was_delivered_names_its_line_and_the_model_that_was_asked_for() -> None:
    outcomes, *_ = made()
    request = packed("1", 7, 8, model="mine")
    first, second = outcomes.records(request, success(request))
    assert isinstance(first, Delivered)
    assert (first.line, second.line, first.asked_model, first.packed) == (7, 8, "mine", 2)


def test_an_outcome_that_does_not_fit_is_a_bad_answer() -> None:
    outcomes, batcher, _, status = made()
    request = packed("1", 1)
    [record] = outcomes.records(request, Outcome("1", {"choices": []}))
    assert isinstance(record, Failed)
    assert record.failure.cause is Cause.BAD_ANSWER
    assert "does not fit its request" in record.failure.message
    assert (record.outcome.completion, record.outcome.failure) == (None, record.failure)
    pack = packed("2", 1, 2)
    assert outcomes.records(pack, Outcome("2", {"choices": []})) == [], "one line's answer may be the reason"
    assert (batcher.held, status.split, status.failures) == (2, 1, 1)


@pytest.mark.parametrize("adopted", [False, True])
def test_failures_carry_the_line_s_own_request_where_it_is_known(adopted: bool) -> None:
    outcomes, _, _, status = made()
    request, failure = packed("1", 1), Failure(Cause.BAD_REQUEST, "no", permanent=True)
    [record] = outcomes.records(request, Outcome("1", failure=failure), adopted=adopted)
    [revoked] = outcomes.revoked(request, "shard-9", adopted=adopted)
    for each in (record, revoked):
        assert isinstance(each, Failed)
        assert (each.request is None) == adopted
    assert isinstance(revoked, Failed)
    assert revoked.failure.cause is Cause.CANCELLED
    assert "its task shard-9 was revoked" in revoked.failure.message
    assert status.failures == 2


@pytest.mark.parametrize(("stopping", "held"), [(None, 2), ("drain", 0)])
def test_what_was_withdrawn_is_sent_again_unless_the_run_stops(stopping: str | None, held: int) -> None:
    outcomes, batcher, _, status = made(stopping=stopping)
    pack = packed("1", 1, 2)
    assert outcomes.records(pack, Outcome("1", failure=Failure(Cause.CANCELLED, "withdrawn"))) == []
    assert (batcher.held, status.split, status.failures) == (held, 0, 0)
    assert (status.packed, status.attempts) == (0, 0), "it was not sent"
    if held:
        assert batcher.next(0.0, 0, True) == (pack.pack_key, pack.slices)
    lasting = Failure(Cause.BAD_REQUEST, "no", permanent=True)
    assert outcomes.records(pack, Outcome("1", failure=lasting)) == []
    assert (batcher.held, status.split) == (held, 1)


def test_a_pack_for_which_the_budget_is_too_small_halves_those_that_follow() -> None:
    outcomes, _, sizer, _ = made()
    for lines, most in ((9, 4), (3, 1)):
        pack = packed("1", *range(lines))
        outcomes.records(pack, Outcome("1", failure=Failure(Cause.BUDGET, "used up")))
        assert sizer.max_prompts == most
    [single] = outcomes.records(packed("1", 1), Outcome("1", failure=Failure(Cause.BUDGET, "used up")))
    assert isinstance(single, Failed)


@pytest.mark.parametrize(
    ("attempts", "provider_s", "learnt"), [(1, 0.5, True), (2, 0.5, False), (1, 0.0, False), (1, 1e-4, True)]
)
def test_latency_is_learnt_from_requests_that_succeeded_at_once(attempts: int, provider_s: float, learnt: bool) -> None:
    outcomes, _, sizer, _ = made()
    request = packed("1", 1, 2)
    outcomes.records(request, success(request, attempts=attempts, provider_s=provider_s, ended_at=1000.0))
    assert sizer.seen(request.pack_key) is learnt
    if learnt:
        assert sizer.predicted_s(request.pack_key, 2) == pytest.approx(provider_s)
    outcomes.records(request, success(request, provider_s=0.5, ended_at=None))
    assert sizer.seen(request.pack_key)


def test_sizes_that_ran_into_the_timeout_are_avoided() -> None:
    late = Failure(Cause.TIMEOUT, "late")
    for ended in (
        lambda request: Outcome("1", failure=late),
        lambda request: success(request, attempts=2, retries={"timeout": 1}),
    ):
        outcomes, _, sizer, _ = made()
        outcomes.records(pack := packed("1", 1, 2, 3, 4), ended(pack))
        assert sizer.latency(pack.pack_key.model).ceiling == 8 * 4 // 2
        outcomes, _, sizer, _ = made()
        outcomes.records(single := packed("1", 1), ended(single))
        assert sizer.latency(single.pack_key.model).ceiling is None


def test_the_pack_size_is_the_latest_request_s() -> None:
    outcomes, batcher, _, _ = made(pack=9)
    assert outcomes.pack == 1
    for line in (1, 2, 3):
        batcher.add(packed("x", line).slices[0].unit)
    assert batcher.next(0.0, 0, True)
    assert outcomes.pack == 3


@pytest.mark.parametrize(
    ("cause", "permanent", "counts"),
    [
        (Cause.BAD_REQUEST, True, True),
        (Cause.CONNECTION, True, True),
        (Cause.CONNECTION, False, False),
        (Cause.CANCELLED, True, False),
    ],
)
def test_which_failures_are_refusals_of_everything(cause: Cause, permanent: bool, counts: bool) -> None:
    refusals = SameRefusals()
    for _ in range(20):
        refusals.add(Failure(cause, "no", permanent=permanent), 1)
    assert (refusals.failure is not None) is counts
    for _ in range(20):
        refusals.add(Failure(Cause.BAD_REQUEST, "no", permanent=True), 1)
    assert refusals.failure is not None, "what does not count changes nothing"


def test_what_ends_after_the_run_stops_changes_nothing() -> None:
    refusals, no = SameRefusals(), Failure(Cause.BAD_REQUEST, "no", permanent=True)
    refusals.add(no, 20, (Mode.CHAT, "m"))
    refusals.final = True
    refusals.add(None)
    refusals.add(no, 1, (Mode.CHAT, "other"))
    assert refusals.failure is no
    assert refusals.targets == {(Mode.CHAT, "m")}


def test_attempts_are_this_submitter_s_where_the_first_one_is() -> None:
    assert attempts_since(Outcome("r", attempts=2, started_at=1000.0, ended_at=999.0), 1000.0) == 2
    assert attempts_since(Outcome("r", attempts=2, started_at=990.0, ended_at=1000.0), 1000.0) == 1
    assert attempts_since(Outcome("r", attempts=2, started_at=990.0), 1000.0) == 1
    assert attempts_since(Outcome("r", attempts=0, started_at=990.0), 1000.0) == 0
