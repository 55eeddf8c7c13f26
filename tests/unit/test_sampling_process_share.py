from __future__ import annotations

import asyncio

from brimful.names import Workload
from brimful_worker.sampling.process_share import Share


async def test_a_process_holds_no_more_than_it_may_and_interactive_never_waits_for_it() -> None:
    share, inside, peak = Share(8000, 3), 0, 0

    async def one(workload: Workload) -> None:
        nonlocal inside, peak
        async with share(workload):
            inside += 1
            peak = max(peak, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(one(Workload.BATCH) for _ in range(20)))
    assert peak == 3
    async with share(Workload.BATCH), share(Workload.BATCH), share(Workload.BATCH):
        await asyncio.wait_for(one(Workload.INTERACTIVE), 5)


async def test_where_the_key_allows_fewer_there_is_no_room_to_wait_for() -> None:
    share = Share(16, 5000)
    assert share(Workload.BATCH) is not share(Workload.BATCH)
