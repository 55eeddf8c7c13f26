"""The type of the setting ``slots``, a number or ``auto``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

AUTO: Literal["auto"] = "auto"


def _read_auto(value: Any) -> Any:
    return AUTO if isinstance(value, str) and value.strip().lower() == AUTO else value


Slots = Annotated[
    Annotated[int, Field(ge=1), Tag("number")] | Annotated[Literal["auto"], Tag(AUTO)],
    Discriminator(lambda value: AUTO if value == AUTO else "number"),  # one error for each fault, not one a type
    BeforeValidator(_read_auto),
]
