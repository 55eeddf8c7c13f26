"""Limits hold with a provider that frees a slot a moment after its client has the answer."""

from __future__ import annotations

import pytest

from support.fleets import fleet
from support.threaded_gateway import threaded_gateway

_SLOTS = 4
_LEAST_S = 0.005


def test_a_slot_is_reused_only_after_the_server_counted_its_request_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        threaded_gateway(0.03) as gateway,
        fleet(monkeypatch, gateway, workers=2, slots=_SLOTS, starts=0) as running,  # type: ignore[arg-type]
    ):
        tasks = running.sample_many(120)
        for task in tasks:
            assert task.get(timeout=60)["choices"]
    assert len(gateway.seen) == 120
    # Not gateway.peak: a busy machine's threads may count late.
    assert gateway.peak_with(_LEAST_S) == _SLOTS
