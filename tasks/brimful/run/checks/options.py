"""The options of checks: what ``--schema``, ``--hook`` and their companions ask for, loaded before a run starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.errors import UsageError
from brimful.run.checks.hook import Hook, load_hook
from brimful.run.checks.schema import Schema, load_schema


@dataclass(frozen=True)
class CheckOptions:
    """How rollouts are checked; at least one of ``schema`` and ``hook`` is set."""

    schema: Schema | None = None
    hook: Hook | None = None
    tries: int = 3
    """Samples of a choice at most, until one is accepted."""
    workers: int = 8
    """Calls of the hook at once."""
    timeout_s: float = 60.0
    """Of one call."""
    keep_rejected: bool = False
    """Keep the texts of rejected rollouts."""

    def parameters(self) -> dict[str, Any]:
        """What decides which rollouts are accepted, JSON-ready: a resumed run must have the same."""
        return {
            "schema": self.schema.identity if self.schema else None,
            "hook": self.hook.name if self.hook else None,
        }


def load_checks(schema: str | None, hook: str | None, **more: Any) -> CheckOptions | None:
    """None where neither is given. ``more``: further fields of CheckOptions, None = the default.

    Raises UsageError where they cannot be loaded, or another option needs one of them.
    """
    given = {name: value for name, value in more.items() if value not in (None, False)}
    if schema is None and hook is None:
        if given:
            flags = {"workers": "--hook-workers", "timeout_s": "--hook-timeout"}
            flag = flags.get(next(iter(given)), f"--{next(iter(given)).replace('_', '-')}")
            raise UsageError(f"{flag}: needs --schema or --hook, which decide whether a rollout is accepted")
        return None
    return CheckOptions(
        load_schema(schema) if schema is not None else None, load_hook(hook) if hook is not None else None, **given
    )
