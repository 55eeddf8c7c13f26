"""Admission: keeps every process of a fleet within the limits of one API key, through Redis.

Level 3. Imported by ``provider``, ``sampling``, ``shards``, ``local`` and ``worker``.

It works without the rest of brimful. Any asyncio program can keep within a key's limits together with every other
process on the same Redis, without Celery::

    from brimful_worker.admission import Admission, Limits

    limits = Limits(slots=16, starts=600, window_s=60)
    async with Admission("redis://localhost:6379", "my-key", limits) as admission:
        async with admission.slot() as lease:       # a slot and a start, granted together
            response = await client.post(...)
            lease.report(ok=response.status_code < 500)

``lease.sent()``, called when the bytes are written, makes the window exact: a grant that comes too late is given back
and raises StaleGrant. ``lease.watch(transport)`` shuts the connection of a request whose slot cannot be kept, even
while the event loop is blocked. For aiohttp, ``brimful_worker.admission.aiohttp_connector.LeaseConnector`` calls both
(``examples/limits_only.py``). A request that counts as a start but is made while a slot is held, such as a poll of a
Job, uses ``admission.start_only()``.

Promises, across all processes, deaths, and restarts or memory loss of Redis:

- never more than ``slots`` leases at once, and never more than ``starts`` grants in any window, on Redis's clock;
- first come, first served across the fleet, interactive before batch; within a process, flows share by weight;
- nothing starts while Redis is away, and a lease that cannot be renewed ends before its slot is given to another;
  what becomes of its request while the process stands still is in :class:`Admission`.
"""

from brimful_worker.admission.admission import Admission
from brimful_worker.admission.clean_start import assume_full, mark_clean
from brimful_worker.admission.errors import EvictingRedis, LeaseLost, Retired, SchemaMismatch, ScriptFailed, StaleGrant
from brimful_worker.admission.lease import Lease, Refused
from brimful_worker.admission.policy import Limits
from brimful_worker.admission.slot import Slot
from brimful_worker.admission.turns import NO_FLOW, Flow

__all__ = [
    "NO_FLOW",
    "Admission",
    "EvictingRedis",
    "Flow",
    "Lease",
    "LeaseLost",
    "Limits",
    "Refused",
    "Retired",
    "SchemaMismatch",
    "ScriptFailed",
    "Slot",
    "StaleGrant",
    "assume_full",
    "mark_clean",
]
