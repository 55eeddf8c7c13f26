"""The URLs of Redis and RabbitMQ, parsed, and the address of a fleet: both URLs and its name.

Level 2. Imports ``errors`` and ``names``; imported by ``config`` and all above it.
"""

from brimful.addresses.broker_address import checked_broker_url
from brimful.addresses.fleet_address import FleetAddress
from brimful.addresses.redis_address import with_tls_files

__all__ = ["FleetAddress", "checked_broker_url", "with_tls_files"]
