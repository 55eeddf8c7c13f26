"""Fields that may be misspelt are pointed out by the client, as by the command line."""

from __future__ import annotations

import logging
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
