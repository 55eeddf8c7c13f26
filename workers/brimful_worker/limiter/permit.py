"""A slot that one task acquires and any task uses."""

from __future__ import annotations

from types import TracebackType

from brimful_worker.admission import Lease, LeaseLost
from brimful_worker.admission.lease import current_lease
from brimful_worker.limiter.acquire import LeaseGroup


class Permit:
    """A slot that is held until it is released: ``async with permit as lease``, or :meth:`release`, in any task.

    Only inside the ``async with`` block do requests mark when they are sent, and are their connections watched. A lost
    slot cancels the task that is inside the block, or, while nobody has entered it, the task that acquired the permit.
    """

    def __init__(self, held: LeaseGroup) -> None:
        self._held: LeaseGroup | None = held
        self._outer: Lease | None = None
        self.lease = held.lease

    async def release(self) -> None:
        """Release the slot. May be called again."""
        await self._end(None, None, None)

    async def __aenter__(self) -> Lease:
        """Raises LeaseLost if the slot could not be kept until now, RuntimeError if the permit was released."""
        if self._held is None:
            raise RuntimeError("this permit was released: acquire a new one")
        if any(lease.lost for lease in (self.lease, *self.lease.companions)):
            await self.release()
            raise LeaseLost("the slot's lease could not be renewed before its permit was used")
        self._outer = current_lease.get()
        self._held.move()
        return self.lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if current_lease.get() is self.lease:
            current_lease.set(self._outer)
        await self._end(kind, error, trace)

    async def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.leave(kind, error, trace)
