"""What one process may hold of a key that allows more than a process can carry (Kios: 5,000 requests a script)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from brimful.names import Workload


class Share:
    """Requests one process may hold, where the key allows more than that: the rest is other processes' to take.

    Batch asks for its slots from within the room; interactive never waits behind it for a place.
    """

    def __init__(self, slots: int, per_process: int) -> None:
        self._places = asyncio.Semaphore(per_process) if slots > per_process else None

    def __call__(self, workload: Workload) -> AbstractAsyncContextManager[object]:
        return nullcontext() if self._places is None or workload is not Workload.BATCH else self._places
