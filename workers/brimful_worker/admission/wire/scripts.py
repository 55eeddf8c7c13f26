"""``exchange.lua``, the admission's script: put together from its parts, and called by its hash."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from brimful.state.keys import admission_keys, everyone_channel, process_channel

SCHEMA = 1
"""Version of the admission's keys, messages and script. Processes of different versions never share a Redis: raise it
with every change that an older script would misread. Workers that send no version count as version 1."""
_INCLUDE = re.compile(r"^--#include (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str


@lru_cache
def exchange() -> Script:
    folder = resources.files("brimful_worker.admission").joinpath("lua")
    text = folder.joinpath("exchange.lua").read_text("utf-8")
    text = _INCLUDE.sub(lambda part: folder.joinpath(part[1]).read_text("utf-8"), text)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def exchange_arguments(tag: str, message: bytes) -> list[Any]:
    """Number of keys, keys and arguments: what follows EVALSHA and the hash, or EVAL and the text."""
    names = admission_keys(tag).values()
    return [len(names), *names, message, process_channel(tag, ""), everyone_channel(tag)]
