"""aiohttp within a limiter's slots. The other modules of the room do not need aiohttp.

``aiohttp.ClientSession(connector=LeaseConnector())``: requests inside ``async with limiter`` mark when they are sent,
and their connections are shut when the slot is lost.
"""

from brimful_worker.admission.aiohttp_connector import LeaseConnector

__all__ = ["LeaseConnector"]
