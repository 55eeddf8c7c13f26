"""One key's limits, kept by a whole fleet: slots, starts in a sliding window, tokens, all on Redis's clock.

It stands alone. Any asyncio program can keep within a key's limits, together with every other process on the same
Redis, without Celery::

    from brimful_worker.admission import Admission, Limits

    limits = Limits(slots=16, starts=600, window_s=60)
    async with Admission("redis://localhost:6379", "my-key", limits) as admission:
        async with admission.slot() as lease:
            response = await client.post(...)      # slot and start are yours
            lease.report(ok=response.status_code < 500)

To be exact to the millisecond, tell the lease when the bytes go out (``lease.sent()``), and let it shut the connection
of a request whose slot cannot be kept (``lease.watch(transport)``). A request that counts as a start but holds no slot
of its own, as a poll of a Job, asks with ``admission.start_only()``.

What it promises: never more than ``slots`` leases and never more than ``starts`` grants in any window, across every
process, through deaths, restarts and lost memory of Redis; first come, first served across the fleet, interactive
before batch; when Redis is away nothing is started; a lease that cannot be renewed ends before its slot is given on.
"""

from brimful_worker.admission.admission import Admission, Slot
from brimful_worker.admission.errors import LeaseLost, StaleGrant
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.policy import Limits
from brimful_worker.admission.wire.scripts import assume_full, mark_clean

__all__ = ["Admission", "Lease", "LeaseLost", "Limits", "Slot", "StaleGrant", "assume_full", "mark_clean"]
