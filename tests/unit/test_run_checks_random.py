"""Checked runs that are killed, interrupted and refused at random: each choice ends once, no sample is paid twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from brimful.errors import FleetError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Delivered, Failed, Recovered, Unit
from brimful.run.checks.options import load_checks
from brimful.run.display.display import Display
from brimful.run.display.summary import Summary
from brimful.run.options import RunOptions
from brimful.run.output.done_index import all_pairs
from brimful.run.prepare import prepare
from brimful.run.session import Session
from support.fake_driver import Answer, Killed, single
from support.live_driver import LiveDriver
from support.runs import PROFILE, options, prompts, records

_TROUBLED = 6
"""Tries of a run in which it may be killed, interrupted, out of budget, or have a broken hook."""
_HOOK = """
import pathlib, random
from brimful.hooks import Again
{kind}def check(line, completion):
    draw = random.Random(f"{seed}/{{line.number}}/{{completion.choice_index}}/{{completion.text}}").random()
    if {broken} and not pathlib.Path({fixed!r}).exists():
        raise KeyError("broken")
    if draw < {faulty}:
        raise ValueError("faulty")
    if draw < 0.5:
        raise Again("no")
    return {{"tries": completion.tries}}
"""


class RandomDriver(LiveDriver):
    """Splits and shuffles what it delivers. Units in flight outlive a killed submitter, as in Redis."""

    def __init__(self, answer: Answer, dice: random.Random, stored: list[Delivered], in_flight: list[Unit]) -> None:
        dies = dice.randrange(1, 30) if dice.random() < 0.5 else None
        super().__init__(answer, stored=stored, die_after=dies, at_once=dice.choice([1, 4, 16]))
        self._dice = dice
        self.in_flight = in_flight

    async def recover(self) -> Recovered:
        pairs = ((unit.line, *pair) for unit in self.in_flight for pair in unit.wanted or all_pairs(unit.request))
        return Recovered((await super().recover()).delivered, frozenset(pairs))

    def _ended(self, unit: Unit) -> list[Delivered | Failed]:
        items = super()._ended(unit)
        if self._dice.random() < 0.6:
            items = [one for item in items for one in single(item)]
        self._dice.shuffle(items)
        return items


class Samples:
    """The texts of each (line, choice), and the seeds that they were asked for with."""

    def __init__(self, dice: random.Random, failing: float) -> None:
        self.seeds: dict[tuple[int, int], list[int]] = {}
        self._dice, self._failing = dice, failing

    def __call__(self, unit: Unit, prompt: int, choice: int) -> str | Failure:
        first = (unit.wanted or all_pairs(unit.request))[0]
        if (prompt, choice) == first and self._dice.random() < self._failing:
            return Failure(Cause.SERVER_ERROR, "HTTP 500")
        seeds = self.seeds.setdefault((unit.line, choice), [])
        seeds.append(unit.request.fields["seed"])
        return f"sample {len(seeds)}"


def _try(asked: RunOptions, driver: RandomDriver, dice: random.Random | None) -> tuple[Summary | None, bool]:
    """The summary, None where it was killed; and whether nothing was left to ask. ``dice`` decides about Ctrl-C."""
    prepared = prepare(asked, PROFILE)
    driver.sync = prepared.sync

    async def sample() -> Summary:
        session = Session(prepared, Display(table=False))

        async def interrupt(waits: int) -> None:
            for _ in range(waits):
                await asyncio.sleep(0)
            session.interrupt()

        later = interrupt(dice.randrange(150)) if dice is not None and dice.random() < 0.4 else asyncio.sleep(0)
        interrupting = asyncio.create_task(later)
        try:
            return await session.run(None if prepared.complete else driver)
        finally:
            interrupting.cancel()

    try:
        return asyncio.run(sample()), prepared.complete
    except Killed:
        return None, False
    finally:
        prepared.close()


@pytest.mark.parametrize("seed", range(16))
def test_each_choice_is_accepted_once_or_recorded_as_failed(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    lines, n, fixed = dice.randrange(1, 20), dice.choice([1, 2, 5]), tmp_path / "fixed"
    source, out = prompts(tmp_path, lines, n=n, seed=1), tmp_path / "out.jsonl"
    broken, faulty, kind = dice.random() < 0.25, dice.choice([0, 0.15]), dice.choice(["", "async "])
    hook = _HOOK.format(seed=seed, kind=kind, broken=broken, faulty=faulty, fixed=str(fixed))
    (tmp_path / "hook.py").write_text(hook)
    checks = load_checks(None, f"{tmp_path / 'hook.py'}:check", tries=dice.choice([1, 2, 4]))
    samples, stored, in_flight = Samples(dice, dice.choice([0, 0.1])), list[Delivered](), list[Unit]()
    for tries in range(40):
        troubled = tries < _TROUBLED
        budget = dice.randrange(20, 400) * (tries + 1) if troubled and dice.random() < 0.3 else None
        driver = RandomDriver(samples, dice, stored, in_flight)
        try:
            asked = options(source, out=out, checks=checks, budget_tokens=budget)
            summary, complete = _try(asked, driver, dice if troubled else None)
        except FleetError as error:
            if "one after the other" not in str(error):
                raise
            fixed.touch()
            continue
        if not troubled and (complete or (summary is not None and not stored)):
            break
        if tries == _TROUBLED - 1:
            fixed.touch()
    assert summary is not None
    accepted, rejected = (
        Counter((record["line"], record["choice_index"]) for record in (records(path) if path.exists() else []))
        for path in (out, tmp_path / "out.jsonl.rejected.jsonl")
    )
    failures = records(tmp_path / "out.jsonl.errors.jsonl") if summary.failed else []
    failed = {(record["line"], choice) for record in failures for _, choice in record["wanted"]}
    assert set(accepted.values()) <= {1}
    assert not failed & set(accepted)
    assert failed | set(accepted) == {(line, choice) for line in range(1, lines + 1) for choice in range(n)}
    # Every sample was accepted or rejected, once; and each was asked for with a seed of its own.
    assert accepted + rejected == Counter({place: len(seeds) for place, seeds in samples.seeds.items()})
    assert all(seeds == [1 + 1_000_000 * each for each in range(len(seeds))] for seeds in samples.seeds.values())
    assert summary.checks is not None
    assert (summary.left, summary.checks["rejected"]) == (0, rejected.total())
