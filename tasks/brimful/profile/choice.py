"""Which provider is meant where none is named: the one whose variables are set."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from brimful.profile.profile import Profile, get_profile, load_profiles

DEFAULT_PROVIDER = "acs"
_SHARED = ("OPENAI_BASE_URL", "OPENAI_API_KEY")
"""Variables that every client of the protocol knows, whichever provider it is pointed to."""


class ProviderChoice(NamedTuple):
    """A provider's name, and what decided it."""

    name: str
    why: str = ""
    """What decided it, such as ``OPENAI_API_KEY is set``; empty if it was named, or no variable is set."""
    sure: bool = True
    """False if only OPENAI_API_KEY decided it, which may be set for another program."""


def choose_provider(extra: Path | None, first_set: Callable[[tuple[str, ...]], str | None]) -> ProviderChoice:
    """The first profile of which a variable of its own is set; else what OPENAI_BASE_URL and OPENAI_API_KEY suggest.

    ``extra``: the file of further profiles. ``first_set``: returns the value of the first of some variables that is
    set. An OPENAI_BASE_URL with an unknown host selects the default. Raises SettingError.
    """
    found: dict[str, str] = {}
    for profile in load_profiles(extra).values():
        for name in (*profile.base_env, *profile.key_env):
            if name not in _SHARED and first_set((name, f"{name}_FILE")):
                found.setdefault(profile.name, name)
    if found:
        (chosen, name), *others = found.items()
        also = f"; {others[0][1]} is set too, --provider {others[0][0]} uses it" if others else ""
        return ProviderChoice(chosen, f"{name} is set{also}")
    if base := first_set(_SHARED[:1]):
        host = _host(base)
        known = _provider_of_host(base, extra)
        if known is None:
            why = f"the default; --provider local or openai may fit OPENAI_BASE_URL = {host} better"
            return ProviderChoice(DEFAULT_PROVIDER, why)
        return ProviderChoice(known, f"OPENAI_BASE_URL names {host}")
    if first_set((_SHARED[1], f"{_SHARED[1]}_FILE")):
        return ProviderChoice("openai", "OPENAI_API_KEY is set", sure=False)
    return ProviderChoice(DEFAULT_PROVIDER)


def profile_in_use(name: str, extra: Path | None, first_set: Callable[[tuple[str, ...]], str | None]) -> Profile:
    """The profile called ``name``, with the variables that count for it. Arguments as for :func:`choose_provider`.

    Where OPENAI_BASE_URL names the profile's host, it and OPENAI_API_KEY count after the profile's own variables. Where
    it names another provider's host, it is no second choice: that provider must not see this key. Raises SettingError.
    """
    profile = get_profile(name, extra)
    base, key = _SHARED
    owner = _provider_of_host(url, extra) if (url := first_set((base,))) else None
    if owner == profile.name:
        names = {"base_env": (*profile.base_env, base), "key_env": (*profile.key_env, key)}
        return profile.model_copy(update={field: tuple(dict.fromkeys(value)) for field, value in names.items()})
    if owner is not None and base in profile.base_env[1:]:
        return profile.model_copy(update={"base_env": tuple(name for name in profile.base_env if name != base)})
    return profile


def _provider_of_host(url: str, extra: Path | None) -> str | None:
    """The name of the profile that knows a URL's host; None if none does. Raises SettingError."""
    host = _host(url)
    profiles = load_profiles(extra).values()
    return next((profile.name for profile in profiles if any(fnmatch(host, known) for known in profile.hosts)), None)


def _host(url: str) -> str:
    """Empty where the URL is not valid, which is said once the URL is needed, and where its host may be a part of a
    password."""
    try:
        parts = urlsplit(url.strip())
        return "" if "@" in parts.path + parts.query + parts.fragment else parts.hostname or ""
    except ValueError:
        return ""
