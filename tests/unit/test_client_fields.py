"""Fields that may be misspelt are pointed out by the client, as by the command line."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from brimful import AsyncFleet, Fleet, errors, sample
from brimful.fields import UnknownFieldWarning
from brimful.testing import Backend


@pytest.fixture(autouse=True)
def backend() -> Iterator[Backend]:
    with Backend() as opened:
        yield opened


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_token": 4}, "field 'max_token' .* did you mean max_tokens?"),
        ({"temprature": 2.0}, "did you mean temperature?"),
        ({"timeout": 5}, "only Fleet.sample and AsyncFleet.sample take a timeout"),
        ({"colour": "blue"}, "field 'colour' is unknown to brimful and sent unchanged$"),
    ],
)
def test_a_misspelt_field_is_pointed_out_where_it_is_named(fields: dict[str, Any], said: str) -> None:
    with Fleet() as fleet:
        calls = [
            lambda: sample.delay("q", **fields),
            lambda: sample.apply_async(({"prompt": "q", **fields},)),
            lambda: sample.s("q", **fields).apply_async(),
            lambda: fleet.submit("q", **fields),
            lambda: fleet.submit({"prompt": "q", **fields}),
            lambda: list(fleet.map(["q"], **fields)),
            lambda: list(fleet.as_completed(["q"], **fields)),
        ]
        if "timeout" not in fields:
            calls.append(lambda: fleet.sample("q", **fields))
        for call in calls:
            with pytest.warns(UnknownFieldWarning, match=said) as caught:
                call()
            assert caught[0].filename == __file__


async def test_the_async_client_does_so_too() -> None:
    async with AsyncFleet() as fleet:
        with pytest.warns(UnknownFieldWarning, match="did you mean max_tokens?") as caught:
            await fleet.sample("q", max_token=4)
        assert caught[0].filename == __file__


def test_known_fields_are_not() -> None:
    with warnings.catch_warnings(), Fleet() as fleet:
        warnings.simplefilter("error")
        fleet.sample({"prompt": "q", "id": "1", "top_k": 3}, max_tokens=4, idempotency_key="k")
        sample.delay(request={"prompt": "q"}, max_tokens=4, idempotency_key="k2", workload="batch")


def test_a_field_of_a_map_s_request_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with Fleet() as fleet:
        list(fleet.map([{"prompt": str(place), "max_token": 4} for place in range(5)]))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["brimful: field 'max_token' is unknown to brimful and sent unchanged; did you mean max_tokens?"]


def test_a_map_takes_no_idempotency_key() -> None:
    with Fleet() as fleet:
        with pytest.raises(errors.BadRequest, match="only single requests"):
            fleet.map(["q"], idempotency_key="k")
        [one] = fleet.map([{"prompt": "q", "idempotency_key": "k"}])
        assert one.failure is not None
        assert "only single requests" in one.failure.message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({1: 2}, "field 1: the name of a field must be a string"),
        ({None: 2, "colour": "blue"}, "field None: the name of a field must be a string"),
        ({"stop": {"x"}}, "stop: must be made of JSON's types: Object of type set is not JSON serializable"),
        ({"logit_bias": {(1, 2): 3}}, "logit_bias: must be made of JSON's types: keys must be "),
        ({"temperature": math.nan}, "temperature: NaN is not a JSON number"),
        ({"logit_bias": {"5": math.inf}}, "logit_bias: infinity (any number above 1.8e308) is not a JSON number"),
        ({"seed": 2**63}, "seed: must be a whole number of 64 bits"),
        ({"top_k": 10**5000}, "top_k: has a whole number of more than 64 bits"),
        ({"workload": "fast"}, "workload: 'fast' is not one of interactive, batch"),
    ],
)
@pytest.mark.filterwarnings("ignore::brimful.fields.UnknownFieldWarning")
def test_what_no_message_can_hold_fails_its_own_request_only(fields: dict[Any, Any], said: str) -> None:
    wrong = {"prompt": "q", **fields}
    with Fleet() as fleet:
        mapped = list(fleet.map(["one", wrong, wrong, "two"], max_tokens=4))
        with fleet.group(["one", wrong], n=2, max_tokens=4) as groups:
            grouped = list(groups)
        for call in (fleet.sample, fleet.submit):
            with pytest.raises(errors.BadRequest) as raised:
                call(wrong, max_tokens=4)
            assert str(raised.value).startswith(said)
    assert [one.ok for one in mapped] == [True, False, False, True]
    assert all(one.failure is None or one.failure.message.startswith(said) for one in mapped)
    assert sorted(len(group.samples) for group in grouped) == [0, 2]


def test_a_name_that_is_no_string_is_refused_by_the_task_too() -> None:
    with pytest.raises(errors.BadRequest, match="field 1: the name of a field must be a string"):
        sample.delay({"prompt": "q", 1: 2})


def test_a_number_that_no_provider_can_get_is_refused_where_it_is_given() -> None:
    """Not by a worker, for whose answer somebody waits."""
    with pytest.raises(errors.BadRequest, match=r"^temperature: NaN"):
        sample.delay("q", temperature=math.nan)
    with pytest.raises(errors.BadRequest, match=r"^top_p: infinity"):
        sample.apply_async(({"prompt": "q", "top_p": math.inf},), queue="interactive")


def test_a_workload_that_does_not_exist_is_a_bad_request() -> None:
    with Fleet() as fleet:
        for call in (fleet.map, fleet.as_completed, lambda *args, **named: fleet.group(*args, n=2, **named)):
            with pytest.raises(errors.BadRequest, match="'fast' is not one of interactive, batch"):
                call(["q"], workload="fast")


@pytest.mark.parametrize(
    ("own", "argument", "queue"),
    [("batch", None, "batch"), (None, None, "interactive"), ("batch", "interactive", "interactive")],
)
async def test_a_request_s_own_workload_counts(
    backend: Backend, own: str | None, argument: str | None, queue: str
) -> None:
    request = {"prompt": "q", "workload": own}
    with Fleet() as fleet:
        fleet.sample(request, workload=argument)
    async with AsyncFleet() as fleet_async:
        await fleet_async.sample(request, workload=argument)
    assert [one.workload for one in backend.requests] == [queue, queue]


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    said = re.escape(f"timeout={timeout!r}: must be seconds, or None to wait without end")
    with Fleet() as fleet, pytest.raises(errors.SettingError, match=said):
        fleet.sample("q", timeout=timeout)
    async with AsyncFleet() as fleet_async:
        with pytest.raises(errors.SettingError, match=said):
            await fleet_async.sample("q", timeout=timeout)


def test_a_list_of_handles_is_refused_with_the_way_out() -> None:
    with Fleet() as fleet:
        handles: Any = [fleet.submit("q")]
        with pytest.raises(TypeError, match=r"list is not a handle or a task id; a list as cancel\(\*handles\)"):
            fleet.cancel(handles)


def test_a_wrong_pack_is_named_as_the_argument() -> None:
    with Fleet() as fleet, pytest.raises(errors.SettingError, match=r"^pack: 'some' is not off, auto"):
        fleet.map(["q"], pack="some")
