"""The URLs of the servers, parsed: Redis's, and RabbitMQ's where that is the broker; both with a fleet's name.

Level 2. Imports ``errors`` and ``names``; imported by ``config`` and all above it.
"""

from brimful.addresses.broker_address import checked_broker_url
from brimful.addresses.fleet_address import FleetAddress
from brimful.addresses.redis_address import with_tls_files

__all__ = ["FleetAddress", "checked_broker_url", "with_tls_files"]
