"""Connects to RabbitMQ. Its failures become BrokerUnreachable and BrokerUnusable, which say what to do.

kombu and py-amqp are imported when they are needed: they are slow to import, and every command imports this module.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

from brimful.addresses.broker_address import parse_broker_url
from brimful.errors import BrokerUnreachable, BrokerUnusable

_TIMEOUT_S = 5.0


def broker_errors() -> tuple[type[Exception], ...]:
    """What kombu and py-amqp raise where RabbitMQ is away or refuses."""
    import amqp
    from kombu.exceptions import OperationalError

    return (amqp.AMQPError, OperationalError, OSError)


@contextlib.contextmanager
def reached(url: str, timeout_s: float = _TIMEOUT_S) -> Iterator[Any]:
    """A connection of kombu to the first node that answers. Raises BrokerUnreachable and BrokerUnusable."""
    from kombu.connection import Connection

    address = parse_broker_url(url)
    made: Any = Connection
    with made(address.url, ssl=address.tls or False, connect_timeout=timeout_s) as connection:
        try:
            connection.ensure_connection(max_retries=len(address.nodes), interval_start=0, interval_step=0.1)
            yield connection
        except broker_errors() as error:
            raise broker_unreachable(url, error) from None


def check_broker(url: str, timeout_s: float = _TIMEOUT_S) -> str:
    """Returns RabbitMQ's version, as it states it. Raises BrokerUnreachable and BrokerUnusable."""
    with reached(url, timeout_s) as connection:
        properties = connection.connection.server_properties
    return " ".join(str(properties[name]) for name in ("product", "version") if name in properties) or "AMQP 0-9-1"


def raise_if_refused(url: str, error: BaseException) -> None:
    """Raises BrokerUnusable if a call failed because RabbitMQ does not accept these settings."""
    if isinstance(found := broker_unreachable(url, error), BrokerUnusable):
        raise found from None


def broker_unreachable(url: str, error: BaseException) -> BrokerUnreachable:
    """The error to raise when a call failed with ``error``; its text holds no password."""
    import amqp

    address = parse_broker_url(url)
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    for node in address.nodes:
        said = said.replace(node.password, "***") if node.password not in ("", "guest") else said
    place = f"RabbitMQ at {address.shown}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, amqp.AccessRefused | amqp.NotAllowed):
            todo = "correct user, password and virtual host in BRIMFUL_BROKER_URL, and the user's permissions"
            return BrokerUnusable(f"{place} refuses this user ({said}); {todo}")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BrokerUnusable(f"{place}: its certificate is not accepted ({said}); set ?ssl_ca_certs= in its URL")
        cause = cause.__cause__
    return BrokerUnreachable(f"no {place}: {said}; check BRIMFUL_BROKER_URL, and that the server runs")
