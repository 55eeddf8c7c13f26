"""The environment of a local fleet's processes: only the workers' holds the API key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from brimful.config import Settings
from brimful.credentials import MIN_KEY_CHARS, first_set, header_variables, query_secrets, read_key
from brimful.names import NO_BROKER
from brimful.profile import load_profiles


def worker_environment(settings: Settings, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The owner's environment with flags, Redis, provider URL and key put in. Raises SettingError without a key."""
    environment = keyless_environment(settings, environ)
    environment["BRIMFUL_PROVIDER"] = settings.profile.name
    environment[settings.profile.base_env[0]] = settings.api_base
    for name in header_variables(settings.profile.headers):
        if (value := first_set((name,))) is not None:
            environment[name] = value
    key, file = settings.profile.key_env[0], settings.api_key_file
    if file is not None and read_key(file) == settings.api_key:
        environment[f"{key}_FILE"] = str(file.absolute())  # the workers follow it
    else:
        environment[key] = settings.api_key.get_secret_value()
    return environment


def keyless_environment(settings: Settings, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """As :func:`worker_environment`, without any provider's key, any other variable that contains the key, and the
    query of a provider's URL that may hold one."""
    environ = os.environ if environ is None else environ
    profiles = load_profiles(settings.profiles).values()
    keys = {name for profile in profiles for name in (*profile.key_env, *header_variables(profile.headers))}
    names = keys | {f"{name}_FILE" for name in keys}
    names |= {name for name in environ if name.startswith("FLOWER_")} | {"BRIMFUL_FLOWER_PASSWORD"}
    secret = settings.api_key.get_secret_value()
    if len(secret) >= MIN_KEY_CHARS:
        names |= {name for name, value in environ.items() if secret in value}
    kept = {name: value for name, value in environ.items() if name not in names}
    for name in {name for profile in profiles for name in profile.base_env} & kept.keys():
        url, mark, query = kept[name].partition("?")
        if query_secrets(f"{mark}{query}"):
            kept[name] = url
    if settings.broker_url is None:
        # In a rehearsal, whose Valkey carries the messages. A variable that is missing would be read from .env.
        kept["BRIMFUL_BROKER_URL"] = NO_BROKER
    return {**kept, **_settings_environment(settings), "PYTHONUNBUFFERED": "1"}


def _settings_environment(settings: Settings) -> dict[str, str]:
    """The settings given by flag, environment or .env, as variables: a child may not see the same flags or .env."""
    found = {}
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if value is not None and not isinstance(value, SecretStr):
            found[f"BRIMFUL_{name.upper()}"] = str(value.absolute() if isinstance(value, Path) else value)
    return found
