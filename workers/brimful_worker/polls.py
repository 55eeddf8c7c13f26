"""Starts for the polls of Jobs, where the provider counts those."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from brimful.names import Workload
from brimful_worker.admission import Admission, Lease

_GRANT_S = 2.0


@asynccontextmanager
async def poll_start(admission: Admission) -> AsyncIterator[Lease | None]:
    """A grant for one poll of a Job, before others' work: it is over in a moment, and frees a slot the sooner.

    None after a while without: when Jobs hold all the slots, a poll that waited for one would wait for itself. Nothing
    else starts then, so that the window has room.
    """
    async with AsyncExitStack() as stack:
        lease: Lease | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRANT_S):
                lease = await stack.enter_async_context(admission.slot(Workload.INTERACTIVE))
        yield lease
        if lease is not None:
            lease.report(ok=None)
