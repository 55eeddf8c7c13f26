"""How many batch requests one process may hold of a key that allows more than a process can carry."""

from __future__ import annotations

import asyncio

import pytest

from brimful.names import Workload
from support.sampling import bench


async def test_a_process_holds_its_share_and_interactive_requests_never_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench(monkeypatch, "http://127.0.0.1:1", provider="kios", slots=8000) as it:
        per_process = it.settings.profile.per_process
        inside = peak = 0

        async def hold(workload: Workload) -> None:
            nonlocal inside, peak
            async with it.sampler.share(workload):
                inside += 1
                peak = max(peak, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(hold(Workload.BATCH) for _ in range(per_process + 100)))
        assert peak == per_process == 5000
        held = [it.sampler.share(Workload.BATCH) for _ in range(per_process)]
        await asyncio.gather(*(share.__aenter__() for share in held))
        await asyncio.wait_for(hold(Workload.INTERACTIVE), 60)


async def test_a_key_of_fewer_slots_has_no_share_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, "http://127.0.0.1:1") as it:
        assert it.sampler.share(Workload.BATCH) is not it.sampler.share(Workload.BATCH)
