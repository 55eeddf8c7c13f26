"""What an outcome means for the lines of its request."""

from __future__ import annotations

import pytest

from brimful.dispatch.outcomes import Outcomes, SameRefusals, attempts_since
from brimful.dispatch.results import pause_s
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest, slices_of
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import DriveStatus, Unit
from brimful.request import Request
from brimful_worker.shards.store import between_steps_s
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
    for packed in wrong[:30]:
        outcomes.records(packed, Outcome(packed.id, failure=no_model))
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
    ("in_flight", "missing", "seconds"), [(200, 250, 0.0), (1000, 250, 0.02), (9000, 1, 0.1), (9000, 0, 0.0)]
)
def test_outcomes_of_many_requests_are_read_together(in_flight: int, missing: int, seconds: float) -> None:
    assert pause_s(in_flight, missing) == pytest.approx(seconds)


@pytest.mark.parametrize(("in_hand", "seconds"), [(1, 0.005), (1000, 0.05), (5000, 0.1)])
def test_outcomes_of_many_requests_are_stored_together(in_hand: int, seconds: float) -> None:
    assert between_steps_s(in_hand) == pytest.approx(seconds)
