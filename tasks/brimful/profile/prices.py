"""Prices of models, and what tokens cost by them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from brimful.errors import SettingError

_MILLION = 1_000_000


@dataclass(slots=True)
class Tokens:
    """What a provider has counted for one model."""

    prompt: int = 0
    """Cached ones included."""
    cached: int = 0
    completion: int = 0

    def add(self, usage: Mapping[str, Any]) -> None:
        """A rollout's usage, in OpenAI's form."""
        details = usage.get("prompt_tokens_details")
        self.prompt += _count(usage, "prompt_tokens")
        self.completion += _count(usage, "completion_tokens")
        self.cached += _count(details, "cached_tokens")


class Price(BaseModel):
    """Currency units for a million tokens of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    """Of prompt tokens that the provider had cached. Default: as ``input``."""
    batch: float = Field(1.0, ge=0, le=1)
    """Factor on requests of the workload batch: 0.5 = half the price."""

    def cost(self, tokens: Tokens, *, batch: bool) -> float:
        """In currency units."""
        cached = min(tokens.cached, tokens.prompt)
        asked = (tokens.prompt - cached) * self.input + cached * (self.input if self.cached is None else self.cached)
        return (asked + tokens.completion * self.output) * (self.batch if batch else 1.0) / _MILLION


def _count(counts: Any, name: str) -> int:
    """A count from a provider; 0 if it is not a whole number of at least 0."""
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def load_prices(path: Path) -> dict[str, Price]:
    """A TOML file with a table for each model. Raises SettingError naming file and model."""
    where = f"BRIMFUL_PRICES: {path}"
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
        return TypeAdapter(dict[str, Price]).validate_python(tables)
    except OSError as error:
        raise SettingError(f"{where}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{where}: is not TOML: {error}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise SettingError(f"{where}: [{'.'.join(map(str, fault['loc']))}]: {fault['msg']}") from None
