"""The limiter for any program: slots and starts in windows, shared by all processes on one Redis.

Level 4. Imports ``admission`` and ``liveness``; nothing of the worker imports it. Needs redis only (extra ``limiter``);
with orjson and hiredis it takes less CPU. ``docs/limiter.md`` is its page.
"""

from brimful.errors import BudgetExhausted, FleetError, RedisUnreachable
from brimful_worker.admission import Lease, LeaseLost, StaleGrant
from brimful_worker.limiter.errors import InvalidLimit, LimiterClosed, SlotTimeout
from brimful_worker.limiter.limiter import Limiter, LimiterSlot
from brimful_worker.limiter.permit import Permit
from brimful_worker.limiter.sync import SyncLimiter, SyncPermit, SyncSlot
from brimful_worker.limiter.windows import Window

__all__ = [
    "BudgetExhausted",
    "FleetError",
    "InvalidLimit",
    "Lease",
    "LeaseLost",
    "Limiter",
    "LimiterClosed",
    "LimiterSlot",
    "Permit",
    "RedisUnreachable",
    "SlotTimeout",
    "StaleGrant",
    "SyncLimiter",
    "SyncPermit",
    "SyncSlot",
    "Window",
]
