"""What ``brimful status`` prints."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from brimful.cli.status import render
from brimful.state.broker_queues import Queues
from brimful.state.provider_health import ProviderHealth
from brimful.state.status import Status, WorkerStatus

_QUEUES = Queues({"interactive": 1, "batch": 22, "celery": 0}, unacked=7)
_STATUS = Status(
    tag="0123456789abcdef",
    epoch="e",
    rebuilding=False,
    slots=16,
    slots_used=12,
    cooling=2,
    starts=600,
    starts_used=600,
    window_s=60.0,
    tokens=None,
    tokens_used=0,
    budget=None,
    budget_spent=0,
    waiting={"interactive": 0, "batch": 4},
    pause_s=0.0,
    pause_reason=None,
    circuit_breaker="closed",
    failures=0,
    limits={"slots": 16.0, "starts": 600.0},
    overridden=(),
    workers=(WorkerStatus("p", "worker-1@here", "here", 1, 12, 0, 4, 0.5),),
)


def _health(state: str, ago: float) -> ProviderHealth:
    now = time.time()
    last = {"ok": now - 500, state: now}
    return ProviderHealth(state, since=now - ago, at=now, status=5, message="HTTP 5: no", last=last)


def test_slots_starts_queues_and_workers_are_shown() -> None:
    text = render(_STATUS, _QUEUES)
    assert "12/16, of which 2 cool down" in text
    assert "600/600 in 60 s" in text
    assert "interactive 0, batch 4" in text
    assert "interactive 1, celery 0, batch 22; delivered to workers 7" in text
    assert "worker-1@here  holds 12, waiting 4" in text
    assert "running" in text
    assert "tokens" not in text
    assert "silent" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pause_s": 12.34, "pause_reason": "Retry-After of the provider"}, "paused for 12.3 s: Retry-After"),
        ({"rebuilding": True}, "Redis lost its memory"),
        ({"circuit_breaker": "open", "failures": 20}, "circuit breaker open after 20 failures in a row"),
        ({"next_start_s": 4.25}, "600/600 in 60 s; next start in 4.2 s"),
        ({"provider": ("ok", 0.0)}, "provider   ok, "),
        (
            {"provider": ("failing", 400.0)},
            "provider   failing since 7 min ago, last ",
        ),
        ({"provider": ("key_refused", 9.0)}, "key refused: every request fails until the key is replaced"),
        ({"provider": ("quota", 9.0)}, "quota at its end: every request fails"),
        ({"epoch": None}, "no worker has used it here yet"),
        ({"starts": None, "starts_used": 0}, "0 (no limit)"),
        ({"tokens": 1000, "tokens_used": 10}, "10/1000"),
        ({"overridden": ("slots", "slots_auto")}, "set by hand: slots 16"),
        (
            {
                "limits": {"slots": 16.0, "slots_auto": 1.0, "lease_s": 20.0, "circuit_breaker": 0.0},
                "overridden": ("slots", "slots_auto", "lease_s", "circuit_breaker"),
            },
            "set by hand: slots auto, lease 20 s, circuit_breaker none",
        ),
        ({"workers": ()}, "workers    none"),
        ({"workers": (replace(_STATUS.workers[0], heard_s=9.0),)}, "silent for 9 s"),
        ({"workers": (replace(_STATUS.workers[0], heard_s=21.0),), "limits": {"lease_s": 20.0}}, "silent for 21 s"),
    ],
)
def test_unusual_states_are_shown(changes: dict[str, object], said: str) -> None:
    if "provider" in changes:  # made here: its times count from now, not from when the tests were collected
        changes = {"provider": _health(*changes["provider"])}  # type: ignore[misc]
    assert said in render(replace(_STATUS, **changes), _QUEUES)  # type: ignore[arg-type]


@pytest.mark.parametrize("lease_s", [8.0, 20.0])
def test_an_idle_worker_is_not_silent_between_two_of_its_commands(lease_s: float) -> None:
    idle = replace(_STATUS.workers[0], heard_s=0.75 * lease_s + 1)
    text = render(replace(_STATUS, workers=(idle,), limits={"slots": 16.0, "lease_s": lease_s}), _QUEUES)
    assert "silent" not in text


def test_the_cost_of_a_far_redis_is_shown() -> None:
    far = replace(_STATUS.workers[0], rtt_ms=105, lag_ms=76)
    limits = {**_STATUS.limits, "guard_s": 0.21}
    text = render(replace(_STATUS, window_s=1.0, limits=limits, workers=(far,)), _QUEUES)
    assert "waiting 4, Redis answers in 105 ms" in text
    assert "each start counts 76 ms longer: at most 78% of the starts (windows of 1 s)" in text
    assert "\ndistance   worker-1@here: " in text


def test_answers_that_are_late_though_redis_is_near_are_called_load() -> None:
    busy = replace(_STATUS.workers[0], rtt_ms=4, lag_ms=2000)
    text = render(replace(_STATUS, workers=(busy,)), _QUEUES)
    assert "\nload       worker-1@here: " in text
    assert "distance" not in text


def test_front_doors_and_other_programs_are_not_counted_as_workers() -> None:
    worker = _STATUS.workers[0]
    door, program = replace(worker, name="serve-8000@here"), replace(worker, name="billing@here", fleet=None)
    for workers, said in (
        ((worker, worker, door, program), "workers    2, and 1 front door, and 1 program"),
        ((worker, program, program), "workers    1, and 2 programs"),
        ((door,), "workers    none, and 1 front door"),
    ):
        assert said in render(replace(_STATUS, workers=workers), _QUEUES).splitlines()
