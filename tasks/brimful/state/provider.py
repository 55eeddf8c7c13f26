"""The provider that the workers use, published in Redis: profile, default model, sizes, timeout of a request.

A client picks endpoints and packs by what the workers say. Its own environment may name another provider, or none.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pydantic import BaseModel, ValidationError
from redis.asyncio import Redis

from brimful.config import Settings
from brimful.profile import Profile
from brimful.profile.prices import Price
from brimful.state.keys import provider_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.status import tag_in_use

log = logging.getLogger(__name__)

PUBLISH_S = 3600.0
"""Workers publish this often: what they published is forgotten :data:`_KEPT_S` after the last of them ended."""
_KEPT_S = 30 * 24 * 3600
_TIMEOUT_S = 5.0
_OF_WORKERS = {
    "base_url",
    "base_path",
    "base_env",
    "hosts",
    "key_env",
    "key_default",
    "key_header",
    "key_prefix",
    "headers",
}
"""What a client has no use for."""


async def publish(client: Redis, settings: Settings) -> None:
    """Raises redis.RedisError or OSError."""
    message = {
        "profile": settings.profile.model_dump(mode="json", exclude=_OF_WORKERS),
        "timeout_s": settings.timeout_s,
    }
    await client.set(provider_key(settings.key_tag), json.dumps(message), ex=_KEPT_S)


async def as_published(redis_url: str, settings: Settings) -> Settings:
    """``settings`` with the workers' profile and timeout; as they are if no worker has published any, it is unclear
    which key's workers are meant, or Redis does not answer."""
    client = redis_client(redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
    try:
        tag = await tag_in_use(client, settings.fleet)
        raw = await client.get(provider_key(tag)) if tag is not None else None
        return settings if raw is None else _merged(settings, json.loads(raw))
    except REDIS_ERRORS as error:
        log.debug("the workers' provider cannot be read: %s", error)
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        log.warning("brimful: the workers' provider is not understood (%s): use one version of brimful", error)
    finally:
        await close_redis_client(client)
    return settings


def _known(kind: type[BaseModel], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in kind.model_fields}


def _merged(settings: Settings, message: dict[str, Any]) -> Settings:
    """Of workers of any version: what a later one has added is left out."""
    fields = _known(Profile, message["profile"])
    fields["prices"] = {model: _known(Price, price) for model, price in fields.get("prices", {}).items()}
    return settings.with_profile(Profile.model_validate(fields), float(message["timeout_s"]))
