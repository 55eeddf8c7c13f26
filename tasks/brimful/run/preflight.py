"""Whether what a run needs can be reached at all, asked once before anything starts; what is wrong is said at once."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from brimful.config import Settings
from brimful.errors import RedisUnreachable, SettingError

_PATIENCE_S = 3.0


def check_provider(settings: Settings) -> None:
    """Raises SettingError naming the variable, host and port when nothing listens there (or the name is unknown)."""
    if any(os.environ.get(name) for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")):
        return
    parts = urlsplit(settings.api_base)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), _PATIENCE_S).close()
    except OSError as error:
        raise SettingError(
            f"cannot reach the provider at {parts.hostname}:{port} ({_reason(error)}): "
            f"check {_base_name(settings)} and the network, or --rehearse"
        ) from None


async def check_redis(url: str) -> None:
    """Raises RedisUnreachable naming BRIMFUL_REDIS_URL, without its password."""
    from redis.exceptions import RedisError

    from brimful.state.redis_url import redis_client, without_password

    try:
        client = redis_client(url, socket_connect_timeout=_PATIENCE_S, socket_timeout=_PATIENCE_S)
        try:
            await client.ping()
        finally:
            await client.aclose()
    except (RedisError, OSError, ValueError) as error:
        raise RedisUnreachable(
            f"cannot reach Redis at {without_password(url)} ({_reason(error)}): check BRIMFUL_REDIS_URL, "
            "or unset it to run with an embedded server"
        ) from None


def _base_name(settings: Settings) -> str:
    return next((name for name in settings.profile.base_env if os.environ.get(name)), settings.profile.base_env[0])


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
