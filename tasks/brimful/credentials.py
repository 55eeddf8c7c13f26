"""The provider's key and URL from the environment and ``.env``; the key also from a file, such as a mounted secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dotenv import dotenv_values
from pydantic import SecretStr

from brimful.errors import SettingError

DOTENV = ".env"
MIN_KEY_CHARS = 8
"""A shorter key (``none``, ``x`` for a local server) is no secret: messages and variables may contain it."""
_PUBLIC_PARAMETERS = ("api-version",)
"""Parameters of a provider's URL that are no secret; any other may be a key."""
_QUERY_VALUE = re.compile(rf"([?&](?!(?:{'|'.join(_PUBLIC_PARAMETERS)})(?:[=&#]|$))(?:[^=&#]*=|(?![^&#]*=)))[^&#]+")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def in_dotenv() -> dict[str, str | None]:
    """The variables of ``.env``; none without the file. Raises SettingError if it cannot be read."""
    try:
        return dotenv_values(DOTENV)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8, at byte {error.start}"
        raise SettingError(f"cannot read {DOTENV} in {os.getcwd()}: {why}") from None


def first_set(names: tuple[str, ...]) -> str | None:
    """The value of the first of these variables that is set, without white space around it. Raises SettingError."""
    stated = in_dotenv()
    for name in names:
        for value in (os.environ.get(name), stated.get(name)):
            if value is not None and (value := value.strip()):
                return value
    return None


def is_set(name: str) -> bool:
    return first_set((name,)) is not None


def shown_url(url: str) -> str:
    """The URL for a message: without what may be a part of a user or password, wherever that seems to end, and without
    the values of its query that may be a key."""
    return _QUERY_VALUE.sub(r"\1…", f"…@{url.rpartition('@')[2]}" if "@" in url else url)


def query_secrets(url: str) -> dict[str, str]:
    """The values in a URL's query that may be a key, as they stand there and decoded, and their parameters' names.

    A parameter without a ``=`` (``?KEY``) is a value, whose name is ``query``.
    """
    found: dict[str, str] = {}
    for parameter in urlsplit(url).query.split("&"):
        name, _, value = parameter.partition("=") if "=" in parameter else ("query", "", parameter)
        if value and name not in _PUBLIC_PARAMETERS and parameter not in _PUBLIC_PARAMETERS:
            # A + is one in a key, and may stand for a space where a provider decodes it.
            found |= dict.fromkeys((value, unquote(value), unquote(value.replace("+", " "))), unquote(name))
    return found


def checked_url(url: str, variable: str) -> str:
    """A provider's base URL without a trailing slash and without ``USER:PASSWORD@``.

    Basic authentication would take the place of the key, and the URL is shown in messages. Behind a password with a
    ``/``, ``?`` or ``#`` that is not percent-encoded, the ``@`` seems to be of the path, and what stands before it is
    not known: such a URL is refused. Raises SettingError naming the variable.
    """
    scheme, slashes, rest = url.strip().partition("://")
    url = scheme.lower() + slashes + rest
    shown = shown_url(url)
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"{variable}: {shown!r} must begin with http:// or https://")
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise SettingError(f"{variable}: {shown!r} has no host or an invalid port") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise SettingError(
            f"{variable}: {shown!r} has an @ behind its host: write it as %40, and in a user or password / as %2F, "
            "? as %3F, # as %23"
        )
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


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


def filled_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A profile's headers with the values of the variables that they name; those whose variable is not set are left
    out. Raises SettingError for a value that a header cannot carry."""
    filled = {}
    for name, value in headers.items():
        values = {variable: first_set((variable,)) for variable in header_variables({name: value})}
        if all(values.values()):
            for variable, held in values.items():
                value = value.replace(f"${{{variable}}}", str(held).strip())
            if not (value.isascii() and value.isprintable()):
                where = ", ".join(values) or "the profile"
                raise SettingError(
                    f"the header {name} (from {where}) contains characters that a header cannot carry (a line break, a "
                    "typographic quote?): set it again"
                )
            filled[name] = value
    return filled


def header_variables(headers: Mapping[str, str]) -> list[str]:
    """The variables that a profile's headers name."""
    return [name for value in headers.values() for name in _VARIABLE.findall(value)]
