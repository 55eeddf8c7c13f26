"""What is wrong with a setting: words for an error of pydantic, and former names."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Container, Iterable, Mapping
from typing import Any

log = logging.getLogger(__name__)

FORMER_NAMES = {
    "settle_s": "release_delay_s",
    "cooloff_s": "cooldown_s",
    "age_s": "starvation_s",
    "breaker": "circuit_breaker",
}
"""Former name of a setting → its present name. Variables with a former name are still read, with a note."""
_OTHER_VARIABLES = {
    *("BRIMFUL_DEBUG", "BRIMFUL_GATEWAY_KEYS", "BRIMFUL_GATEWAY_PORT", "BRIMFUL_CHAOS"),
    *("BRIMFUL_IMAGE", "BRIMFUL_UID", "BRIMFUL_GID", "BRIMFUL_REDIS_PASSWORD"),  # of the Compose file
}
"""Variables that are read, but are no settings."""
_EXPECTED = {"int": "is not a whole number", "float": "is not a number", "bool": "is neither true nor false"}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
    "less_than": ("lt", "less than"),
}
_SHOWN = 40


def fault_text(fault: Any, options: Container[str] = ()) -> str:
    """A message for an error of pydantic. It shows the value only of numbers and booleans: others may be secret.

    ``options``: the settings that were given as options of the command, which are named as they were typed.
    """
    setting = str(fault["loc"][0])
    name = option(setting) if setting in options else variable(setting)
    kind = str(fault["type"])
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{name}: must be {words} {fault['ctx'][bound]:g}"
    meant, _, rest = kind.partition("_")
    if meant in _EXPECTED and rest in ("parsing", "type", "from_float"):
        return f"{name}: {str(fault['input'])[:_SHOWN]!r} {_EXPECTED[meant]}"
    return f"{name}: {str(fault['msg']).removeprefix('Value error, ')}"


def variable(setting: str) -> str:
    """The environment variable of a field of Settings."""
    return f"BRIMFUL_{setting.upper()}"


def option(setting: str) -> str:
    """The command-line option of a setting or a limit; durations lose their ``_s``."""
    return f"--{setting.removesuffix('_s').replace('_', '-')}"


def unknown_variables(
    settings: Iterable[str], stated: Iterable[str], others: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """(what is wrong, what to do) for each of the ``stated`` ``BRIMFUL_*`` variables that is no setting.

    ``others``: variables that are read besides the settings and those named above.
    """
    known = {variable(name) for name in (*settings, *FORMER_NAMES)} | _OTHER_VARIABLES | {*others}
    unknown = {name.upper() for name in stated if name.upper().startswith("BRIMFUL_")} - known
    near = {name: difflib.get_close_matches(name, known, 1, 0.8) for name in sorted(unknown)}
    return [
        (f"{name} is set, but there is no such setting", f"did you mean {found[0]}?" if found else "unset it")
        for name, found in near.items()
    ]


_noted: set[str] = set()


def former_values(given: Mapping[str, Any], stated: Mapping[str, str | None]) -> dict[str, Any]:
    """Settings whose variable has its former name, unless the present one is set too. Logs each such name once."""
    found: dict[str, Any] = {}
    for former, name in FORMER_NAMES.items():
        value = stated.get(variable(former))
        if value and name not in given and not stated.get(variable(name)):
            found[name] = value
            if former not in _noted:
                _noted.add(former)
                log.warning("brimful: %s is now called %s: rename it", variable(former), variable(name))
    return found
