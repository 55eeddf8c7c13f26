"""Which provider is meant where none is named: the one whose variables are set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from brimful.profile.profile import Profile, load_profiles

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
    profiles = load_profiles(extra).values()
    for profile in profiles:
        for name in (*profile.base_env, *profile.key_env):
            if name not in _SHARED and first_set((name, f"{name}_FILE")):
                return ProviderChoice(profile.name, f"{name} is set")
    if base := first_set(_SHARED[:1]):
        host = urlsplit(base).hostname or ""
        found = _of_host(profiles, host)
        if found is None:
            why = f"the default; --provider local or openai may fit OPENAI_BASE_URL = {host} better"
            return ProviderChoice(DEFAULT_PROVIDER, why)
        return ProviderChoice(found, f"OPENAI_BASE_URL names {host}")
    if first_set((_SHARED[1], f"{_SHARED[1]}_FILE")):
        return ProviderChoice("openai", "OPENAI_API_KEY is set", sure=False)
    return ProviderChoice(DEFAULT_PROVIDER)


def _of_host(profiles: Iterable[Profile], host: str) -> str | None:
    return next((profile.name for profile in profiles if any(fnmatch(host, known) for known in profile.hosts)), None)
