"""An aiohttp connector that sends requests under the lease of their block. Nothing else here needs aiohttp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from brimful_worker.admission.lease import current_lease

if TYPE_CHECKING:
    from aiohttp.client import ClientTimeout
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


class LeaseConnector(aiohttp.TCPConnector):
    """``aiohttp.ClientSession(connector=LeaseConnector())``: a ``TCPConnector`` that knows the slots of an Admission.

    A request that is made inside ``async with admission.slot()`` calls :meth:`Lease.sent` before its first byte is
    written, and its connection is watched until its answer was read: it is shut when the lease ends, even while the
    event loop is blocked. A request outside of such a block is sent as usual.

    Raises StaleGrant from the request when its grant came too late, and for a second request in one block: a redirect
    and aiohttp's own retry reach the provider as starts of their own. Ask for a new slot then.
    """

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        lease = current_lease.get()
        if lease is None or lease.ended:
            return connection
        try:
            lease.sent()
        except BaseException:
            connection.release()
            raise
        if connection.transport is not None:
            lease.watch(connection.transport)
            connection.add_callback(lease.unwatch)
        return connection
