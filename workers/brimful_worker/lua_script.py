"""Lua scripts of this package, with the SHA-1 by which Redis runs them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def load_script(package: str, *names: str) -> Script:
    """The files of a package, as one script."""
    folder = resources.files(package)
    return Script.of("\n".join(folder.joinpath(name).read_text("utf-8") for name in names))
