"""Where a fleet is reached: one value for its Redis, its broker and its name."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FleetAddress:
    """A fleet's servers, and its name among the fleets there. The URLs may hold passwords."""

    redis_url: str = field(repr=False)
    fleet: str = ""
    """Its name; empty for the unnamed fleet."""
    rabbitmq_url: str | None = field(default=None, repr=False)
    """The broker, where Redis is not."""
