"""Probes before work begins: does Redis answer, does the provider accept connections, which workers answer."""

from __future__ import annotations

import os
import socket
from urllib.error import URLError
from urllib.parse import urlsplit

import redis

from brimful.config import Settings
from brimful.errors import RedisUnreachable, SettingError
from brimful.state.redis_url import broker_options, broker_url, sync_redis_client, without_password

_TIMEOUT_S = 5.0
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")


def connect(url: str, timeout_s: float = _TIMEOUT_S) -> redis.Redis:
    """A client whose server has answered a PING. Raises RedisUnreachable."""
    try:
        client = sync_redis_client(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
        client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        raise unreachable(url, error) from None
    return client


def unreachable(url: str, error: Exception) -> RedisUnreachable:
    """The error to raise when a command failed with ``error``; its text holds no password."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    secret = urlsplit(url).password if url.count("//") == 1 else None
    if secret:
        said = said.replace(secret, "***")
    return RedisUnreachable(
        f"no Redis at {without_password(url)}: {said}; check BRIMFUL_REDIS_URL, and that the server runs"
    )


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
    redis_url: str, visibility_timeout_s: int, *, timeout_s: float, limit: int | None = None
) -> dict[str, list[str]]:
    """Node name → the queues it reads, of the workers that answer within ``timeout_s``; of the first ``limit`` ones.

    Raises kombu.exceptions.OperationalError or redis.RedisError.
    """
    from celery import Celery

    with Celery("brimful-probe", broker=broker_url(redis_url), set_as_current=False) as app:
        app.conf.broker_transport_options = broker_options(redis_url, visibility_timeout_s)
        answers = app.control.inspect(timeout=timeout_s, limit=limit).active_queues() or {}
    return {node: [str(queue["name"]) for queue in queues] for node, queues in answers.items()}
