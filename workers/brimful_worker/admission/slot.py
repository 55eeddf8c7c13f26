"""Waiting for a slot and holding it, as an async context manager."""

from __future__ import annotations

import asyncio
from types import TracebackType

from brimful_worker.admission.errors import LeaseLost
from brimful_worker.admission.lease import Lease, current_lease
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.turns import Flow
from brimful_worker.admission.waiters import Queue
from brimful_worker.liveness.boot_time import boot_time


class Slot:
    """An async context manager that yields a :class:`Lease`; see :meth:`Admission.slot`.

    Each entry waits for a lease of its own, so many tasks may use one object at the same time. Leave it in the task
    that entered it; another task may leave it only while no further one is inside. Leaving it never waits, so a
    cancellation cannot interrupt it half-way.
    """

    def __init__(
        self,
        local_state: LocalState,
        queue: Queue,
        flow: Flow,
        tokens: int,
        name: str = "",
        since: float | None = None,
    ) -> None:
        self._local_state = local_state
        self._queue = queue
        self._flow = flow
        self._tokens = tokens
        self._name = name
        self._since = since
        self._entries: list[_Entry] = []

    async def __aenter__(self) -> Lease:
        since = boot_time() if self._since is None else self._since
        while True:
            waiter = self._local_state.ask(self._queue, self._flow, self._tokens, since, self._name)
            try:
                lease = await waiter.future
            except BaseException:
                self._local_state.cancel(waiter)
                raise
            if boot_time() < lease.wire_deadline and not lease.lost:
                break
            lease.given_back = True
            self._local_state.end(lease, failed=False)
        self._entries.append(_Entry(lease))
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = self._take_entry()
        lease = entry.lease
        entry.close()
        self._local_state.end(lease, failed=error is not None)
        if entry.cancelled_by_others() and isinstance(error, asyncio.CancelledError):
            return
        if lease.lost and error is not None and not lease.given_back:
            raise LeaseLost("the slot's lease could not be renewed; its request was ended") from error

    def move(self) -> None:
        """The running task is inside now, in place of the one that entered: it is cancelled when the lease is lost."""
        for entry in self._entries:
            entry.move()

    def _take_entry(self) -> _Entry:
        if len(self._entries) == 1:
            return self._entries.pop()
        inside = {entry.task for entry in self._entries}
        task = next(iter(inside)) if len(inside) == 1 else asyncio.current_task()
        for place in reversed(range(len(self._entries))):
            if self._entries[place].task is task:
                return self._entries.pop(place)
        raise RuntimeError(
            f"{len(inside)} tasks are inside this slot, and the one that leaves it is not one of them: "
            "leave it in the task that entered it, or call admission.slot() for each request"
        )


class _Entry:
    """One task inside a slot."""

    __slots__ = ("_cancelling", "_interrupted", "_outer", "lease", "task")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.task = asyncio.current_task()
        self._cancelling = self.task.cancelling() if self.task else 0
        self._interrupted = False
        self._outer = current_lease.get()
        lease.on_lost(self._interrupt)
        current_lease.set(lease)

    def move(self) -> None:
        self.task = asyncio.current_task()
        self._cancelling = self.task.cancelling() if self.task else 0

    def close(self) -> None:
        self.lease.on_lost(None)
        if current_lease.get() is self.lease:
            current_lease.set(self._outer)

    def cancelled_by_others(self) -> bool:
        """Whether the task was cancelled by somebody else besides. Takes back the cancellation by the lost lease."""
        return self._interrupted and self.task is not None and self.task.uncancel() > self._cancelling

    def _interrupt(self) -> None:
        if self.task is not None:
            self._interrupted = True
            self.task.cancel()
