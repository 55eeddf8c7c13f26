"""The provider's key and URL from the environment and ``.env``; the key also from a file, such as a mounted secret."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv import dotenv_values
from pydantic import SecretStr

from brimful.errors import SettingError

DOTENV = ".env"


def first_set(names: tuple[str, ...]) -> str | None:
    """The value of the first of these variables that is set."""
    dotenv = dotenv_values(DOTENV)
    for name in names:
        if value := os.environ.get(name) or dotenv.get(name):
            return value
    return None


def key_file(names: tuple[str, ...]) -> Path | None:
    """The file that ``<NAME>_FILE`` names, unless a key itself is set.

    ``names``: of variables that may hold the key; the first one that is set counts. Raises SettingError where a key and
    its file are both set.
    """
    for name in names:
        value, path = first_set((name,)), first_set((f"{name}_FILE",))
        if value and path:
            raise SettingError(f"{name} and {name}_FILE are both set: unset one of them")
        if value:
            return None
        if path:
            return Path(path).expanduser()
    return None


def read_key(path: Path) -> SecretStr:
    """The key in a file, without white space around it. Raises SettingError."""
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingError(f"cannot read the API key from {path} ({why})") from None
    if not key:
        raise SettingError(f"the API key's file {path} is empty")
    return SecretStr(key)
