"""Groups, answered by a test's backend."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from brimful import AsyncFleet, Fleet, Group, errors
from brimful.client.group import GroupOptions
from brimful.client.group_pack import GroupPacking
from brimful.config import Settings
from brimful.errors import PermanentFailure
from brimful.outcome import Cause, Failure
from brimful.request import Request
from brimful.testing import Backend
from support.waiting import wait_until_async

PROMPTS = [f"p{place}" for place in range(6)]


async def collect(fleet: AsyncFleet, prompts: list[object], **options: object) -> list[Group]:
    async with fleet.group(prompts, **options) as groups:  # type: ignore[arg-type]
        return [group async for group in groups]


async def test_each_prompt_s_samples_come_together() -> None:
    with Backend(lambda request: f"{request.prompts[0]}!"):
        async with AsyncFleet() as fleet:
            found = await collect(fleet, [*PROMPTS, {"prompt": "mine", "id": "x"}], n=4, max_tokens=8)
    assert sorted(group.index for group in found) == list(range(7))
    assert {group.id for group in found} == {*map(str, range(6)), "x"}
    for group in found:
        prompt = group.prompt["prompt"] if isinstance(group.prompt, dict) else group.prompt
        assert group.full
        assert not group.missing
        assert group.texts == [f"{prompt}!"] * 4
        assert [sample.choice_index for sample in group.samples] == [0, 1, 2, 3]
        assert all(sample.usage for sample in group.samples)


async def test_without_prompts_there_are_no_groups() -> None:
    with Backend():
        async with AsyncFleet() as fleet:
            assert await collect(fleet, [], n=2) == []


async def test_a_block_is_entered_once() -> None:
    with Backend() as backend, Fleet() as fleet:
        groups = fleet.group(["a"], n=2, max_tokens=4)
        with groups:
            assert len(list(groups)) == 1
        with pytest.raises(RuntimeError, match="was entered before"):
            groups.__enter__()
        async with AsyncFleet() as fleet_async:
            groups_async = fleet_async.group(["b"], n=2, max_tokens=4)
            async with groups_async:
                pass
            with pytest.raises(RuntimeError, match="was entered before"):
                await groups_async.__aenter__()
        assert sum(request.prompts == ["a"] for request in backend.requests) <= 2


def test_the_blocking_client_has_them_too() -> None:
    with Backend(), Fleet() as fleet, fleet.group(PROMPTS, n=2) as groups:
        assert [group.texts for group in groups] == [["text", "text"]] * 6


@pytest.mark.parametrize(
    ("pack", "slots", "together"), [("auto", 16, True), ("auto", 100, False), ("off", 16, False), ("group", 100, True)]
)
async def test_samples_share_a_request_where_they_would_queue_for_slots(
    monkeypatch: pytest.MonkeyPatch, pack: str, slots: int, together: bool
) -> None:
    monkeypatch.setenv("BRIMFUL_SLOTS", str(slots))
    with Backend() as backend:
        async with AsyncFleet() as fleet:
            found = await collect(fleet, PROMPTS, n=8, max_tokens=8, pack=pack)
            sizes = Counter(request.n for request in backend.requests)
            assert {len(group.texts) for group in found} == {8}
            assert (sizes[8] > 0) is together
            unbound = await collect(fleet, PROMPTS, n=8)  # several choices need max_tokens, by the profile
    assert all(group.full for group in unbound)


async def test_the_first_n_of_an_over_sampled_group_are_kept_and_the_others_cancelled() -> None:
    ended: list[str] = []
    cancelled: list[str] = []

    async def answer(request: Request) -> str:
        prompt, seed = request.prompts[0], request.fields["seed"] - 100
        try:
            await (asyncio.Event().wait() if seed in (1, 4) else asyncio.sleep(0))
        except asyncio.CancelledError:
            cancelled.append(f"{prompt}-{seed}")
            raise
        ended.append(f"{prompt}-{seed}")
        return str(seed)

    with Backend(answer):
        async with AsyncFleet() as fleet:
            async with asyncio.timeout(60):
                found = await collect(fleet, PROMPTS[:3], n=3, oversample=2, seed=100)
        assert [sorted(group.texts) for group in found] == [["0", "2", "3"]] * 3
        assert all(not group.missing for group in found)
        await wait_until_async(lambda: len(cancelled) >= 3, "the stragglers to be cancelled")
        assert not {each for each in ended if each[-1] in "14"}


@pytest.mark.parametrize("stragglers", ["wait", "drop"])
async def test_the_deadline_gives_what_is_there_and_names_what_is_missing(stragglers: str) -> None:
    running = Counter[str]()

    async def answer(request: Request) -> str | Failure:
        prompt, number = request.prompts[0], request.fields["seed"]
        if prompt == "p2" and number == 1:
            return Failure(Cause.CONTENT_FILTER, "no", 400, permanent=True)
        if prompt == "p1" and number == 2:
            running[prompt] += 1
            try:
                await asyncio.Event().wait()
            finally:
                running[prompt] -= 1
        return f"{prompt}-{number}"

    with Backend(answer):
        async with AsyncFleet() as fleet:
            options = {"n": 3, "deadline_s": 1.5, "stragglers": stragglers, "seed": 0}
            async with fleet.group(PROMPTS[:3], **options) as groups:  # type: ignore[arg-type]
                found = {group.index: group async for group in groups}
                await wait_until_async(lambda: not running["p1"], "the straggler to be cancelled")
                found |= {group.index: group for group in groups.dropped}
                assert {group.index for group in groups.dropped} == ({1} if stragglers == "drop" else set())
    assert found[0].full
    assert found[1].texts == ["p1-0", "p1-1"]
    [(number, failure)] = found[1].missing.items()
    assert (number, failure.cause) == (2, Cause.CANCELLED)
    assert "deadline of 1.5 s" in failure.message
    assert found[2].texts == ["p2-0", "p2-2"]  # it ended before, though not full
    assert found[2].missing[1].cause is Cause.CONTENT_FILTER


async def test_a_failed_sample_is_made_up_for_by_over_sampling() -> None:
    def answer(request: Request) -> str:
        if request.fields["seed"] == 0:
            raise PermanentFailure("no", "content_filter")
        return "ok"

    with Backend(answer):
        async with AsyncFleet() as fleet:
            [group] = await collect(fleet, ["a"], n=2, oversample=1, seed=0)
            [short] = await collect(fleet, ["a"], n=2, seed=0)
    assert (group.texts, group.full, dict(group.missing)) == (["ok", "ok"], True, {})
    assert (short.texts, short.full, list(short.missing)) == (["ok"], False, [0])


async def test_leaving_the_block_cancels_and_a_bad_prompt_is_its_own_group_s_failure() -> None:
    hanging = 0

    async def answer(request: Request) -> str:
        nonlocal hanging
        hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            hanging -= 1
        return ""

    with Backend(answer):
        async with AsyncFleet() as fleet:
            async with fleet.group([{}, {"prompt": ["a", "b"]}, "c", {"prompt": "d", "n": 3}], n=2) as groups:
                first = [await anext(groups) for _ in range(3)]
                await wait_until_async(lambda: hanging == 2, "both samples of the good prompt")
            await wait_until_async(lambda: hanging == 0, "them to be cancelled")
    assert [(group.index, group.texts, sorted(group.missing)) for group in first] == [
        (0, [], [0, 1]),
        (1, [], [0, 1]),
        (3, [], [0, 1]),
    ]
    assert {failure.cause for group in first for failure in group.missing.values()} == {Cause.BAD_REQUEST}


async def test_arguments_out_of_range_are_refused_at_once() -> None:
    with Backend():
        async with AsyncFleet() as fleet:
            for options, said in (
                ({"n": 0}, "n=0"),
                ({"n": 2.5}, "n=2.5: must be a whole number of at least 1"),
                ({"n": "2"}, "n='2'"),
                ({"n": 2, "deadline_s": 0}, "deadline_s=0"),
                ({"n": 2, "deadline_s": float("nan")}, "deadline_s=nan"),
                ({"n": 2, "oversample": -1}, "oversample"),
                ({"n": 2, "stragglers": "wat"}, "stragglers"),
                ({"n": 2, "stragglers": "drop"}, "deadline_s"),
                ({"n": 2, "pack": "group", "oversample": 1}, "oversample"),
                ({"n": 2, "idempotency_key": "k"}, "only single requests"),
            ):
                with pytest.raises(errors.UsageError, match=said):
                    fleet.group(["a"], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("starts", "alone_s", "together_s", "packed"),
    [
        (0, 0.1, 0.3, True),  # 10 waves of 0.1 s against 3 of 0.3 s
        (0, 0.1, 0.5, False),
        (60, 0.1, 5.0, True),  # 160 starts would take minutes
    ],
)
def test_samples_share_a_request_unless_that_was_slower(
    starts: int, alone_s: float, together_s: float, packed: bool
) -> None:
    settings = Settings.load(slots=16, starts=starts)
    packing = GroupPacking(40, GroupOptions(4, None, 0, "wait", "auto"))
    request = Request.parse({"prompt": "p", "max_tokens": 8}, settings.profile)
    for size, seconds in ((1, alone_s), (4, together_s)):
        for _ in range(3):
            packing.note(size, seconds)
    assert not packing.together(0, request, settings.profile)  # the first group shows how long one sample takes
    assert packing.together(5, request, settings.profile) is packed
