"""Which limit a 429 is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brimful_worker.admission import Refused
from brimful_worker.provider.answers.answer import Answer
from brimful_worker.provider.answers.classify import classify_answer
from brimful_worker.sampling import retry


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
