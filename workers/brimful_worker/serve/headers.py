"""The headers of an answer; apart, as whole answers and streams bear the same."""

from __future__ import annotations

from collections.abc import Mapping

from brimful_worker.serve.front import Front


def answer_headers(front: Front, provider: Mapping[str, str], attempts: int, waited_s: float) -> dict[str, str]:
    """``provider``: the headers of its last answer. ``attempts`` at the provider, after ``waited_s`` for slots."""
    headers = {"x-brimful-attempts": str(attempts), "x-brimful-waited-ms": str(round(waited_s * 1000))}
    if (id := provider.get("x-request-id")) is not None and id.isprintable():
        headers["x-brimful-provider-request-id"] = id
    return headers | front.rates.headers()
