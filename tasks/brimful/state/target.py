"""Which Redis a command reads: BRIMFUL_REDIS_URL, or the one embedded Valkey that runs on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from brimful.config import Settings
from brimful.errors import SettingError, UsageError
from brimful.state.embedded import running_servers
from brimful.state.redis_url import without_password
from brimful.state.status import known_tags


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    tag: str | None = None
    """The key tag, of an embedded Valkey, which serves one key."""

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        return without_password(self.url)


def find_redis(settings: Settings) -> Place:
    """Raises UsageError when there is neither a URL nor exactly one embedded Valkey that can be meant."""
    if settings.redis_url is not None:
        return Place(settings.redis_url)
    servers = running_servers(settings.state_dir)
    try:
        own = settings.key_tag
    except SettingError:
        own = None
    if own in servers:
        return Place(servers[own].url, own)
    if len(servers) == 1:
        ((tag, server),) = servers.items()
        return Place(server.url, tag)
    if servers:
        raise UsageError(
            f"{len(servers)} local fleets run here, for different keys: set the key of the one you mean, or "
            "BRIMFUL_REDIS_URL as its `brimful up` printed it"
        )
    raise UsageError(
        "BRIMFUL_REDIS_URL is not set and no local fleet runs here: set it, or start one with `brimful up`"
    )


def find_tag(place: Place, client: redis.Redis, settings: Settings, wanted: str | None = None) -> str:
    """The key tag that is meant: ``wanted`` (its beginning is enough), the own key's, or the only one there is.

    Raises UsageError listing the tags when none or several could be meant, redis.RedisError.
    """
    tags = known_tags(client)
    if wanted is not None:
        found = [tag for tag in tags if tag.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        raise UsageError(f"--tag {wanted}: {'several' if found else 'no'} such; there are {', '.join(tags) or 'none'}")
    try:
        own = settings.key_tag
    except SettingError:
        own = None
    if own in tags:
        return own
    if len(tags) == 1:
        return tags[0]
    if not tags:
        if own or place.tag:
            return own or str(place.tag)
        raise UsageError(f"no worker has ever used the Redis at {place.shown}: start one with `brimful worker`")
    raise UsageError(f"several keys share this Redis: choose one with --tag, of {', '.join(tags)}")
