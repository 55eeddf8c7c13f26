"""Lua scripts that are called by their SHA-1."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str


def load_script(package: str, *names: str) -> Script:
    """The files of a package, as one script."""
    folder = resources.files(package)
    text = "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
