"""How the provider answers, as the log of a worker says it."""

from __future__ import annotations

import logging

import pytest

from brimful.outcome import Cause
from brimful.state.provider_health import parse_health
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.sampling.health import HealthReporter

REFUSES = "the provider refuses the API key (m): requests fail until the key is replaced"
THROTTLES = "the provider answers 429 (m)"
FAILS = "the provider fails (m)"
ENDED = "the key's quota is at its end (m): requests fail until it is raised"


def answer(kind: Kind) -> Classification:
    return Classification(kind, message="m", status=400)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((Kind.THROTTLED, Kind.THROTTLED, Kind.SUCCESS, Kind.THROTTLED), [THROTTLES]),
        ((Kind.TRANSIENT, Kind.PERMANENT, Kind.TRANSIENT), [FAILS]),
        ((Kind.BUDGET, Kind.BUDGET), [ENDED]),
        ((Kind.SUCCESS, Kind.FILTERED, Kind.PERMANENT), []),
    ],
)
def test_each_change_is_logged_once(kinds: tuple[Kind, ...], said: list[str], caplog: pytest.LogCaptureFixture) -> None:
    reporter = HealthReporter(clock=lambda: 1000.0)
    with caplog.at_level(logging.WARNING):
        for kind in kinds:
            reporter.observe(answer(kind))
    assert caplog.messages == said


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_what_passes_is_logged_once_a_minute_and_what_lasts_each_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    reporter = HealthReporter(clock=clock)
    with caplog.at_level(logging.INFO):
        for kind in (Kind.TRANSIENT, Kind.SUCCESS, Kind.TRANSIENT, Kind.KEY_REFUSED, Kind.SUCCESS):
            reporter.observe(answer(kind))
            clock.now += 1
        clock.now = 1060.0
        reporter.observe(answer(Kind.TRANSIENT))
        reporter.observe(answer(Kind.KEY_REFUSED))
    resumed = "the provider takes requests again, 1 s after it began to refuse them"
    assert caplog.messages == [FAILS, REFUSES, resumed, FAILS, REFUSES]
    levels = [logging.WARNING, logging.ERROR, logging.WARNING, logging.WARNING, logging.ERROR]
    assert [record.levelno for record in caplog.records] == levels


def test_it_is_said_how_long_the_last_refusal_lasted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    reporter = HealthReporter(clock=clock)
    for seconds, kind in ((0, Kind.BUDGET), (100, Kind.KEY_REFUSED), (7, Kind.KEY_REFUSED), (3, Kind.SUCCESS)):
        clock.now += seconds
        reporter.observe(answer(kind))
    assert caplog.messages[-1] == "the provider takes requests again, 10 s after it began to refuse them"


@pytest.mark.parametrize(
    ("seen", "logged"),
    [
        (Classification(Kind.PERMANENT, message="m"), FAILS),  # no HTTP answer: its certificate is invalid
        (Classification(Kind.PERMANENT, message="m", status=404), None),
        (Classification(Kind.TRANSIENT, cause=Cause.CONNECTION, message="m", stale=True), None),
        (Classification(Kind.TRANSIENT, cause=Cause.LEASE_LOST, message="m"), None),
        (Classification(Kind.TRANSIENT, cause=Cause.CONNECTION, message="m"), FAILS),
    ],
)
def test_only_the_provider_s_own_failures_are_its_state(
    seen: Classification, logged: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    HealthReporter().observe(seen)
    assert caplog.messages == ([logged] if logged else [])


def test_another_key_begins_without_what_was_said_of_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    reporter = HealthReporter(clock=lambda: 1000.0)
    reporter.observe(answer(Kind.KEY_REFUSED))
    reporter.forget()
    reporter.observe(answer(Kind.SUCCESS))
    assert caplog.messages == [REFUSES], "nothing was refused under this key"
    reporter.observe(answer(Kind.KEY_REFUSED))
    assert caplog.messages == [REFUSES, REFUSES]


def test_a_pause_is_logged_once_until_it_is_longer(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(0.0)
    reporter = HealthReporter(clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(16):
            reporter.paused(5.0, "rate_limited")
        clock.now = 1.0
        reporter.paused(5.0, "rate_limited")  # about as long
        reporter.paused(0.5, "rate_limited")  # shorter: the longer one is still under way
        clock.now = 2.5
        reporter.paused(5.0, "rate_limited")
    assert caplog.messages == ["the fleet pauses for 5 s: rate_limited"] * 2


def test_the_newest_answer_of_all_workers_counts() -> None:
    said = {"ok": '{"at": 90, "since": 10}', "failing": '{"at": 100, "since": 50, "message": "m", "of": "newer"}'}
    health = parse_health(said)
    assert health is not None
    assert (health.state, health.since, health.at, health.last["ok"]) == ("failing", 90, 100, 90)
    assert parse_health({}) is None
