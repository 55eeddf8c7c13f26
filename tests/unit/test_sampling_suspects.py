"""Requests with which workers died: judged by their deaths, sampled alone, charged what each death may have cost."""

from __future__ import annotations

import asyncio

import pytest

from brimful.outcome import Cause, Outcome
from brimful_worker.sampling.suspects import ALONE_AFTER, MAX_DEATHS, Isolation, Suspicion
from support.fake_admission import FakeAdmission, FakeLease
from support.gateways import running_gateway
from support.sampling import bench


@pytest.mark.parametrize(
    ("divided", "divisible", "deaths", "alone", "fails"),
    [
        (False, False, 0, False, False),
        (False, False, ALONE_AFTER - 1, False, False),
        (False, False, ALONE_AFTER, True, False),
        (False, False, MAX_DEATHS - 1, True, False),
        (False, False, MAX_DEATHS, True, True),
        (False, True, ALONE_AFTER - 1, False, False),
        (False, True, ALONE_AFTER, True, True),
        (True, True, 0, True, False),
        (True, True, 1, True, True),
        (True, False, MAX_DEATHS - ALONE_AFTER - 1, True, False),
        (True, False, MAX_DEATHS - ALONE_AFTER, True, True),
    ],
)
def test_the_verdict_on_a_request(divided: bool, divisible: bool, deaths: int, alone: bool, fails: bool) -> None:
    suspicion = Suspicion(divided, divisible)
    assert suspicion.learn(deaths) == deaths
    assert suspicion.learn(deaths) == 0
    assert suspicion.alone is alone
    verdict = suspicion.verdict()
    assert (verdict is not None) is fails
    assert verdict is None or verdict.cause is Cause.WORKER_LOST


def test_a_request_is_given_to_five_workers_at_most() -> None:
    suspicion = Suspicion()
    assert not suspicion.alone
    verdicts = []
    for deaths in range(1, 7):
        assert suspicion.learn(deaths) == 1
        verdicts.append(suspicion.verdict() is not None)
    assert verdicts == [False, False, False, False, True, True]
    assert suspicion.learn(3) == 0, "a lease may know of fewer deaths than the last one"
    assert suspicion.deaths == 6


async def test_one_at_a_time_is_alone_and_the_others_wait() -> None:
    isolation, order = Isolation(), []
    assert isolation.enter(alone=False)

    async def alone(name: str) -> None:
        async with isolation.alone():
            assert isolation.enter(alone=True)
            order.append(name)
            await asyncio.sleep(0)
            assert order[-1] == name, "nothing else is on the wire"
            isolation.leave()

    async def among_others() -> None:
        await isolation.wait()
        assert isolation.enter(alone=False)
        order.append("others")
        isolation.leave()

    suspects = [asyncio.create_task(alone(name)) for name in ("a", "b")]
    await asyncio.sleep(0)
    assert not isolation.enter(alone=False)
    others = asyncio.create_task(among_others())
    await asyncio.sleep(0)
    assert order == []
    isolation.leave()
    await asyncio.gather(*suspects, others)
    assert sorted(order) == ["a", "b", "others"]


async def test_a_suspect_that_is_cancelled_lets_the_others_go_on() -> None:
    isolation = Isolation()
    assert isolation.enter(alone=False)

    async def alone() -> None:
        async with isolation.alone():
            raise AssertionError

    suspect = asyncio.create_task(alone())
    await asyncio.sleep(0)
    assert not isolation.enter(alone=False)
    suspect.cancel()
    await asyncio.wait({suspect})
    await asyncio.wait_for(isolation.wait(), 60)


class Deadly(FakeAdmission):
    """Knows of deaths of each request."""

    deaths = 0

    def made(self, lease: FakeLease) -> None:
        lease.deaths = self.deaths


@pytest.mark.parametrize("deaths", [1, ALONE_AFTER, MAX_DEATHS])
async def test_each_death_costs_its_reservation(monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    admission = Deadly()
    admission.deaths = deaths
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url, admission) as it:
        outcome = await it.sample([1, 2, 3], max_tokens=6)
    assert outcome.unmetered_tokens == deaths * (3 + 6)
    assert Outcome.from_message(outcome.as_message()).unmetered_tokens == outcome.unmetered_tokens
    assert outcome.ok is (deaths < MAX_DEATHS)
    assert outcome.attempts == admission.sent == int(outcome.ok)
    assert len(admission.grants) == 1 + (deaths == ALONE_AFTER), "a suspect gives its grant back until it is alone"
