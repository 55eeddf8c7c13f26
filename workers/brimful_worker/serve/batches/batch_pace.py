"""Lets the run of a batch sample no more lines than its caller's limits a minute allow.

The run reads from a file up to which line it may ask (``brimful run --pace``). The file outlives the front door: lines
that were counted once are not counted again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

from brimful.names import Workload
from brimful.request import Request
from brimful.runtime import json_bytes
from brimful.runtime.atomic import atomic_write
from brimful.state.callers.tokens import CallerRecord
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.batches.record import ENDPOINTS, Batch
from brimful_worker.serve.batches.run_files import RunFiles
from brimful_worker.serve.callers.batch_accounts import BatchAccounts

_AGAIN_S = 0.5
_AT_ONCE = 256
"""Lines that are counted at once."""


class BatchPace:
    """Counts the lines of one batch, and writes which of them the run may ask for."""

    def __init__(self, batch: Batch, run: RunFiles, accounts: BatchAccounts) -> None:
        self._batch = batch
        self._run = run
        self._accounts = accounts
        self._caller: CallerRecord | None = None
        """As last known, since the limits of a caller whose token is revoked still hold."""

    async def begin(self) -> bool:
        """Prepare the file. Returns False for a caller without such limits, whose run needs none."""
        self._caller = await self._accounts.caller(self._batch.owner)
        if self._caller is None or not self._caller.minute_limited:
            return False
        if not self._run.pace.exists():
            await asyncio.to_thread(self._write, self._batch.completed + self._batch.failed)
        return True

    async def run(self) -> None:
        """Returns when all lines are let in. Raises OSError and FleetError."""
        batch, line = self._batch, int(self._run.pace.read_bytes())
        tokens = self._tokens(line)
        waiting: deque[int] = deque()
        while line < batch.total:
            waiting.extend(await asyncio.to_thread(self._read, tokens, _AT_ONCE - len(waiting)))
            counted = await self._count(line + 1, list(waiting))
            if counted:
                line += counted
                await asyncio.to_thread(self._write, line)
            if counted < len(waiting):
                await asyncio.sleep(_AGAIN_S)
            for _ in range(counted):
                waiting.popleft()

    async def _count(self, first: int, tokens: list[int]) -> int:
        """How many of the next lines may be asked for now."""
        self._caller = await self._accounts.caller(self._batch.owner) or self._caller
        if self._caller is None or not self._caller.minute_limited:
            return len(tokens)
        try:
            return await self._accounts.count_lines(self._caller, self._batch.id, first, tokens)
        except REDIS_ERRORS:
            return 0

    @staticmethod
    def _read(tokens: Iterator[int], number: int) -> list[int]:
        return list(islice(tokens, number))

    def _tokens(self, line: int) -> Iterator[int]:
        """Tokens that each of the lines after ``line`` may use."""
        mode = ENDPOINTS[self._batch.endpoint]
        with self._run.input.open("rb") as file:
            for data in islice(file, line, None):
                body = json_bytes.decode(data)["body"]
                yield Request(fields=body, mode=mode, workload=Workload.BATCH).hold

    def _write(self, line: int) -> None:
        with atomic_write(self._run.pace) as file:
            file.write(b"%d\n" % line)
