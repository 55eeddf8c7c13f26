"""Which limit a 429 is about, and which limits the headers of an answer state."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from brimful_worker.admission import Refused
from brimful_worker.provider.answers.answer import Answer
from brimful_worker.provider.answers.classify import classify_answer
from brimful_worker.provider.answers.stated import stated_starts
from brimful_worker.sampling import retry
from support.gateways import running_gateway
from support.sampling import bench


@pytest.mark.parametrize(
    ("error", "headers", "refused"),
    [
        ({"code": "queue_full", "type": "rate_limit_error"}, {}, Refused.SLOTS),
        ({"code": "too_many_concurrent_requests"}, {}, Refused.SLOTS),
        ({"code": "rate_limited", "type": "rate_limit_error"}, {}, Refused.STARTS),
        ({"code": "rate_limit_exceeded", "type": "requests"}, {}, Refused.STARTS),
        ({"code": "rate_limit_exceeded", "type": "tokens"}, {}, None),
        ({"code": "rate_limit_exceeded"}, {}, Refused.EITHER),
        ({"type": "rate_limit_error"}, {"anthropic-ratelimit-requests-remaining": "0"}, Refused.STARTS),
        ({"type": "rate_limit_error"}, {"anthropic-ratelimit-output-tokens-remaining": "0"}, None),
        ({"message": "slow down"}, {"x-ratelimit-remaining-requests": "12"}, Refused.EITHER),
        (None, {}, Refused.EITHER),
    ],
)
def test_the_limit_that_refused(error: dict[str, Any] | None, headers: dict[str, str], refused: Refused | None) -> None:
    body = json.dumps({"error": error} if error else {}).encode()
    answer = classify_answer(Answer(429, headers, body), expected=1, now=0.0)
    assert retry.refused_by(answer) is refused


def test_other_failures_teach_nothing() -> None:
    for status in (400, 401, 402, 500, 503):
        assert retry.refused_by(classify_answer(Answer(status, {}, b"{}"), expected=1, now=0.0)) is None


ANTHROPIC = "anthropic-ratelimit-requests"
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("headers", "starts"),
    [
        ({"x-ratelimit-limit-requests": "60", "x-ratelimit-reset-requests": "1s"}, 60),
        ({"x-ratelimit-limit-requests": "500", "x-ratelimit-reset-requests": "1m0.8s"}, 500),
        ({"x-ratelimit-limit-requests": "500", "x-ratelimit-reset-requests": "120ms"}, 500),
        ({"x-ratelimit-limit-requests": "500"}, 500),
        ({"x-ratelimit-limit-requests": "14400", "x-ratelimit-reset-requests": "2m59.56s"}, 0),
        ({"x-ratelimit-limit-requests": "200", "x-ratelimit-reset-requests": "1d2h"}, 0),
        (
            {f"{ANTHROPIC}-limit": "50", f"{ANTHROPIC}-reset": "2026-01-01T12:00:12Z"},
            50,
        ),
        ({f"{ANTHROPIC}-limit": "50", f"{ANTHROPIC}-reset": "2026-01-02T12:00:12Z"}, 0),
        ({"x-ratelimit-limit-requests": "many"}, 0),
        ({"x-ratelimit-limit-requests": "²"}, 0),
        ({"x-ratelimit-limit-requests": "9", "x-ratelimit-reset-requests": "soonT"}, 9),
        ({"x-ratelimit-limit-requests": "9", "x-ratelimit-reset-requests": "66s"}, 9),
        ({"x-ratelimit-limit-requests": "9", "x-ratelimit-reset-requests": "67"}, 0),
        ({"x-ratelimit-limit-requests": "0"}, 0),
        ({}, 0),
    ],
)
def test_starts_that_headers_state(headers: dict[str, str], starts: int) -> None:
    assert stated_starts(headers, now=NOW) == starts


async def test_the_admission_learns_what_headers_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for form, starts in (("openai", 7), ("anthropic", 9), ("none", 0)):
        async with (
            running_gateway(rate_headers=form, starts=starts or 5) as gateway,
            bench(monkeypatch, gateway.url) as one,
        ):
            await one.sample()
            assert [lease.stated_starts for lease in one.admission.grants] == [starts]


async def test_the_admission_learns_which_limit_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(starts=1, window_s=0.2) as gateway, bench(monkeypatch, gateway.url) as one:
        await one.sample()
        await one.sample()
        assert Refused.STARTS in [lease.refused for lease in one.admission.grants]
