"""Probes before work begins: does Redis answer, does the provider accept connections, which workers answer."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlsplit

import redis
from redis.exceptions import NoPermissionError
from redis.sentinel import MasterNotFoundError

from brimful.addresses import FleetAddress
from brimful.addresses.redis_address import parse_redis_url
from brimful.errors import RedisUnreachable, RedisUnusable, SettingError
from brimful.state.rabbitmq.reach import broker_errors, broker_unreachable, check_broker
from brimful.state.redis_url import celery_settings, required, sync_redis_client, without_password

if TYPE_CHECKING:
    from brimful.config import Settings

_NO_CLUSTER = (
    ", on which Celery's broker does not work; set BRIMFUL_REDIS_URL to a server without cluster mode, or to Sentinels "
    "for failover"
)
_TLS_FAULTS = (
    (
        *("Hostname mismatch", "its certificate is for another name"),
        "use the name in the certificate, or have one issued for this name",
    ),
    (
        *("IP address mismatch", "its certificate is for another name"),
        "use the name in the certificate, or have one issued for this address",
    ),
    (
        *("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
        "set BRIMFUL_REDIS_CA_FILE to the certificate of the authority that signed it",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS", "use redis:// instead of rediss://, or its TLS port"),
    ("record layer failure", "it does not speak TLS", "use redis:// instead of rediss://, or its TLS port"),
    ("CERTIFICATE_REQUIRED", "it asks for a client certificate", "set BRIMFUL_REDIS_CERT_FILE"),
)
"""Text in OpenSSL's error, what it means, what to do."""
_CUT_OFF = ("Connection reset", "Connection closed by server")
"""What a client without TLS sees of a server that expects it."""
EVICTION_REMEDY = "set `maxmemory-policy noeviction`"
_TIMEOUT_S = 5.0
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")


def connect(url: str, timeout_s: float = _TIMEOUT_S) -> redis.Redis:
    """A client whose server has answered a PING. Raises RedisUnreachable; RedisUnusable for a cluster too."""
    client = sync_redis_client(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    try:
        client.ping()
        with contextlib.suppress(NoPermissionError):
            if client.info("cluster").get("cluster_enabled"):
                raise RedisUnusable(f"{without_password(url)} is a node of a Redis Cluster{_NO_CLUSTER}")
    except (redis.RedisError, OSError, ValueError) as error:
        raise unreachable(url, error) from None
    return client


def check_servers(settings: Settings, timeout_s: float = _TIMEOUT_S) -> None:
    """Redis answers, and RabbitMQ where that is the broker. Raises SettingError without a Redis, RedisUnreachable,
    RedisUnusable and their kinds for RabbitMQ."""
    connect(required(settings.redis_url), timeout_s).close()
    if settings.broker_url is not None:
        check_broker(settings.broker_url, timeout_s)


def unreachable(url: str, error: Exception) -> RedisUnreachable:
    """The error to raise when a command failed with ``error``; its text holds no password."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    address = parse_redis_url(url)
    if address.password:
        said = said.replace(address.password, "***")
    place = without_password(url)
    if isinstance(error, redis.AuthenticationError):
        remedy = "correct them in BRIMFUL_REDIS_URL"
        return RedisUnusable(f"Redis at {place} refuses this user or password ({said}); {remedy}")
    if isinstance(error, NoPermissionError):
        remedy = "docs/redis.md lists the rights that its user needs"
        return RedisUnusable(f"Redis at {place} refuses this user a command ({said}); {remedy}")
    if isinstance(error, MasterNotFoundError):
        remedy = "check ?master= in BRIMFUL_REDIS_URL, and that a primary runs"
        return RedisUnreachable(f"the Sentinels at {place} name no primary ({said}); {remedy}")
    for mark, why, remedy in _TLS_FAULTS:
        if mark in said:
            return RedisUnusable(f"Redis at {place}: {why} ({said}); {remedy}")
    what = "runs"
    if address.tls and isinstance(error, redis.TimeoutError):
        what = "speaks TLS there"
    elif not address.tls and any(mark in said for mark in _CUT_OFF):
        what = "does not ask for TLS there (then use rediss://)"
    return RedisUnreachable(f"no Redis at {place}: {said}; check BRIMFUL_REDIS_URL, and that the server {what}")


def eviction_fault(info: Mapping[str, object]) -> tuple[str | None, bool]:
    """What is wrong with the ``maxmemory-policy`` in a server's INFO (None: nothing); whether it may drop keys now."""
    policy, limit = str(info.get("maxmemory_policy", "noeviction")), int(str(info.get("maxmemory", 0)))
    if policy == "noeviction":
        return None, False
    when = "when memory runs short" if limit else "once a maxmemory is set"
    return f"maxmemory-policy {policy}: {when}, it silently drops queues and limits", bool(limit)


def check_provider(settings: Settings) -> None:
    """Open and close a TCP connection to the provider; does nothing where a proxy is set.

    Raises SettingError naming the variable, host and port.
    """
    if any(map(os.environ.get, _PROXIES)):
        return
    parts = urlsplit(settings.api_base)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), _TIMEOUT_S).close()
    except OSError as error:
        names = settings.profile.base_env
        raise SettingError(
            f"cannot reach the provider at {parts.hostname}:{port} ({failure_reason(error)}): check "
            f"{next(filter(os.environ.get, names), names[0])} and the network, or use --rehearse"
        ) from None


def failure_reason(error: Exception) -> str:
    """Why a connection failed, without a text of the other side."""
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, OSError) else error
    if isinstance(cause, TimeoutError):
        return "no answer"
    return (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__


def worker_queues(
    address: FleetAddress, visibility_timeout_s: int, *, timeout_s: float, limit: int | None = None
) -> dict[str, list[str]]:
    """Node name → the queues it reads, of the fleet's workers that answer within ``timeout_s``; of the first ``limit``.

    Raises kombu.exceptions.OperationalError or redis.RedisError; BrokerUnreachable for RabbitMQ.
    """
    from celery import Celery

    with Celery("brimful-probe", set_as_current=False) as app:
        app.conf.update(celery_settings(address, visibility_timeout_s))
        try:
            answers = app.control.inspect(timeout=timeout_s, limit=limit).active_queues() or {}
        except broker_errors() as error:
            if address.rabbitmq_url is None:
                raise
            raise broker_unreachable(address.rabbitmq_url, error) from None
    return {node: [str(queue["name"]) for queue in queues] for node, queues in answers.items()}
