"""The URLs of the servers, parsed: Redis's, and RabbitMQ's where that is the broker.

Level 2. Imports ``errors`` and ``names``; imported by ``config`` and ``state``.
"""

from brimful.addresses.broker_address import checked_broker_url
from brimful.addresses.redis_address import with_tls_files

__all__ = ["checked_broker_url", "with_tls_files"]
