"""Which Redis and which key a command is about: BRIMFUL_REDIS_URL, or the embedded Valkey of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis

from brimful.config import Settings
from brimful.credentials import first_set
from brimful.errors import SettingError, UsageError
from brimful.profile import DEFAULT_PROVIDER
from brimful.state.embedded import running_servers
from brimful.state.keys import FLEETS
from brimful.state.redis_url import without_password
from brimful.state.status import known_tags


@dataclass(frozen=True, slots=True)
class RedisTarget:
    url: str
    tag: str | None = None
    """The key tag, of an embedded Valkey, which serves one key."""

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        return without_password(self.url)


def find_redis(settings: Settings) -> RedisTarget:
    """Raises UsageError if there is neither a URL nor one embedded Valkey, of this key or the only one."""
    if settings.redis_url is not None:
        return RedisTarget(settings.redis_url)
    servers = running_servers(settings.state_dir)
    tag = own_tag(settings)
    if tag not in servers and len(servers) == 1:
        (tag,) = servers
    if tag in servers:
        return RedisTarget(servers[tag].url, tag)
    if servers:
        raise UsageError(
            f"{len(servers)} local fleets run here, for different keys: set the key of one of them, or "
            "BRIMFUL_REDIS_URL as its `brimful up` printed it"
        )
    raise UsageError(
        "BRIMFUL_REDIS_URL is not set and no local fleet runs here: set it, or start one with `brimful up`"
    )


def find_tag(
    target: RedisTarget,
    client: redis.Redis,
    settings: Settings,
    wanted: str | None = None,
    *,
    tags: Sequence[str] | None = None,
) -> str:
    """The key tag that begins with ``wanted``; without it this process's own key's, the fleet's, or the only one.

    ``tags``: those in Redis, where they have been read. Raises UsageError listing the tags if none or several fit, and
    redis.RedisError.
    """
    if tags is None:
        tags = known_tags(client)
    if wanted is not None:
        found = [tag for tag in tags if tag.startswith(wanted)]
        if len(found) != 1:
            which = "several" if found else "no"
            raise UsageError(f"--tag {wanted}: {which} key tags begin with it; there are {', '.join(tags) or 'none'}")
        return found[0]
    own = own_tag(settings)
    if own is not None and own in tags:
        return own
    registered = str(client.hget(FLEETS, settings.fleet) or "").partition(" ")[0]
    if registered in tags:
        return registered
    if len(tags) == 1:
        return tags[0]
    if tags:
        raise UsageError(f"several keys share this Redis: choose one with --tag, of {', '.join(tags)}")
    if tag := own or target.tag:
        return tag
    raise UsageError(f"no worker has ever used the Redis at {target.shown}: start one with `brimful worker`")


def submitter_tag(settings: Settings) -> str | None:
    """The tag of the key in the own variable of the provider that was named, or of the default one; None without it.

    A submitter needs no key, and may have other providers' keys, or OPENAI_API_KEY, for other purposes.
    """
    try:
        if settings.provider is None and settings.provider_choice.name != DEFAULT_PROVIDER:
            return None
        name = settings.profile.key_env[0]
        return own_tag(settings) if first_set((name, f"{name}_FILE")) else None
    except SettingError:
        return None


def own_tag(settings: Settings) -> str | None:
    """The tag of this process's API key; None if it has none."""
    try:
        return settings.key_tag
    except SettingError:
        return None
