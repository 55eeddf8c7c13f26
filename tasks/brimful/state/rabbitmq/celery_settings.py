"""Celery's settings where RabbitMQ is the broker."""

from __future__ import annotations

from typing import Any

from brimful.addresses.broker_address import parse_broker_url

CONFIRM_S = 30.0
"""How long RabbitMQ may take to confirm a message."""


def rabbitmq_settings(url: str) -> dict[str, Any]:
    """Celery's settings that differ where RabbitMQ is the broker. Raises SettingError for an invalid URL."""
    address = parse_broker_url(url)
    return {
        "broker_url": address.url,
        "broker_use_ssl": address.tls,
        # Without confirmation, a message is lost if RabbitMQ dies or refuses it after it was sent.
        "broker_transport_options": {"confirm_publish": True, "write_timeout": CONFIRM_S},
    }
