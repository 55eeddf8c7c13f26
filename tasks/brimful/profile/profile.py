"""Provider profiles, read from TOML: a provider's limits, sizes, endpoints, headers and variables.

The built-in profiles are in ``profiles.toml``; the file that ``BRIMFUL_PROFILES`` names adds others or overrides them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from brimful.errors import SettingError
from brimful.fields import built_in_tables, field_sets, listed_fields
from brimful.names import Mode
from brimful.nesting import unsendable
from brimful.profile.prices import Price, Tokens


class Profile(BaseModel):
    """The limits and the interface of one provider. A limit of ``None`` does not exist, and costs nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    base_url: str | None = None
    """Used when none of the variables is set."""
    base_path: str = "/v1"
    """The path of a base URL that has none."""
    hosts: tuple[str, ...] = ()
    """Host names, * standing for any part, that mean this provider in OPENAI_BASE_URL."""
    base_env: tuple[str, ...] = Field(("OPENAI_BASE_URL",), min_length=1)
    """Environment variables of the base URL; the first that is set counts."""
    key_env: tuple[str, ...] = Field(("OPENAI_API_KEY",), min_length=1)
    """Environment variables of the API key; the first that is set counts."""
    key_default: str | None = None
    """Sent where no variable holds a key: a server of one's own may need none."""
    key_header: str = "Authorization"
    """The header that carries the key."""
    key_prefix: str = "Bearer "
    """What stands before the key in that header."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of every request; ``${NAME}`` in a value stands for that variable, and without it the header is left
    out."""
    model: str | None = None
    """The default model."""
    max_completion_tokens: tuple[str, ...] = ()
    """Models, * standing for any part, whose chats take ``max_completion_tokens`` in place of ``max_tokens``."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Model, * standing for any part, → what it costs. An exact name counts before patterns, and of these
    the first that fits."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields of every request that does not have them itself."""
    fields: tuple[str, ...] = ("openai", "vllm", "llama-cpp")
    """Sets of body fields that it takes: names of ``[fields.NAME]`` in ``profiles.toml``."""
    more_fields: tuple[str, ...] = ()
    """Further fields that it takes."""
    modes: tuple[Mode, ...] = Field((Mode.COMPLETION, Mode.CHAT), min_length=1)
    """Its endpoints: completion, chat, job. The first is the default for a prompt."""
    slots: int = Field(16, ge=1)
    """Active requests per key."""
    starts: int | None = Field(None, ge=1)
    """Requests started per key in any window."""
    window_s: float = Field(60.0, gt=0)
    """The window, in seconds."""
    tokens: int | None = Field(None, ge=1)
    """Tokens per key in any window."""
    max_request_tokens: int | None = Field(None, ge=1)
    """Most prompts x n x max_tokens of one request."""
    max_prompts: int | None = Field(None, ge=1)
    """Most prompts of one request; 1 where the endpoint takes no list."""
    max_n: int | None = Field(None, ge=1)
    """Most choices per prompt."""
    max_tokens_required: bool = False
    """Whether ``max_tokens`` must be given when there is more than one choice or prompt."""
    workload_header: str | None = None
    """Name of the header that carries the workload; None = it is not sent."""
    job_polls_count: bool = True
    """Whether a poll of a Job counts as a start."""
    per_process: int = Field(5000, ge=1)
    """Most requests in flight of one process."""

    @field_validator("fields")
    @classmethod
    def _known_sets(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in field_sets()]:
            raise ValueError(f"unknown set of fields {unknown[0]!r}: known are {', '.join(field_sets())}")
        return names

    @field_validator("extra_body")
    @classmethod
    def _sendable(cls, body: dict[str, Any]) -> dict[str, Any]:
        if fault := unsendable(body):
            raise ValueError(fault)
        return body

    def takes(self, mode: Mode) -> frozenset[str]:
        """The fields of a request's body that the endpoint takes, by this profile."""
        return listed_fields(self.fields, self.more_fields + tuple(self.extra_body), mode is Mode.CHAT)

    def cost(self, used: Mapping[tuple[str, ...], Tokens], *, batch: bool) -> float | None:
        """What tokens cost, by the names of their models as for :meth:`price`; None where none of them has one."""
        prices = [(price, tokens) for models, tokens in used.items() if (price := self.price(*models)) is not None]
        return sum(price.cost(tokens, batch=batch) for price, tokens in prices) if prices else None

    def price(self, *models: str) -> Price | None:
        """What a model costs that has one or several names; the first name with a price counts. None: not known.

        A provider may answer by another name than it was asked by: gpt-4o-2024-08-06 for gpt-4o, or for a deployment.
        """
        for model in models:
            fits = (price for known, price in self.prices.items() if fnmatch(model, known))
            if (price := self.prices.get(model) or next(fits, None)) is not None:
                return price
        return None


@lru_cache
def load_profiles(extra: Path | None = None) -> dict[str, Profile]:
    """All profiles by name. Raises SettingError naming the file and the field."""
    tables = {name: table for name, table in built_in_tables().items() if name != "fields"}
    if extra is not None:
        try:
            mine = tomllib.loads(extra.read_text("utf-8"))
        except OSError as error:
            raise SettingError(f"BRIMFUL_PROFILES: cannot read {extra}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingError(f"BRIMFUL_PROFILES: {extra} is not TOML: {error}") from None
        for name, table in mine.items():
            if not isinstance(table, dict):
                raise SettingError(f"BRIMFUL_PROFILES: {extra}: {name!r} must be a table, as in [{name}]")
            tables[name] = _overridden(tables.get(name, {}), table)
    profiles = {}
    for name, table in tables.items():
        try:
            profiles[name] = Profile.model_validate({**table, "name": name})
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)
            )
            raise SettingError(f"BRIMFUL_PROFILES: {extra or 'profiles.toml'}: [{name}] {faults}") from None
    return profiles


def _overridden(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A profile's table with values of one's own. Headers, prices and fields are added to those that it has."""
    inner = {
        name: {**table[name], **value}
        for name, value in own.items()
        if isinstance(value, dict) and isinstance(table.get(name), dict)
    }
    return {**table, **own, **inner}


def get_profile(name: str, extra: Path | None = None) -> Profile:
    """The profile called ``name``. Raises SettingError listing the known ones."""
    profiles = load_profiles(extra)
    if name not in profiles:
        known = ", ".join(sorted(profiles))
        raise SettingError(
            f"unknown provider {name!r} (--provider, BRIMFUL_PROVIDER): known are {known}; BRIMFUL_PROFILES can name a "
            "TOML file with others"
        )
    return profiles[name]
