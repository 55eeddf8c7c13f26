"""The headers of an answer, the same for whole answers and streams."""

from __future__ import annotations

from collections.abc import Mapping

from brimful_worker.provider.answers.answer import request_id_of
from brimful_worker.serve.front import Front

PROVIDER_ID = "x-brimful-provider-request-id"
REPLAYED = "x-brimful-replayed"
"""``true``: the answer of an earlier request with the same ``Idempotency-Key``."""


def answer_headers(front: Front, provider: Mapping[str, str], attempts: int, waited_s: float) -> dict[str, str]:
    """``provider``: the headers of its last answer. ``attempts`` at the provider, after ``waited_s`` for slots."""
    headers = {"x-brimful-attempts": str(attempts), "x-brimful-waited-ms": str(round(waited_s * 1000))}
    if id := request_id_of(provider):
        headers[PROVIDER_ID] = id
    return headers | front.rates.headers()
