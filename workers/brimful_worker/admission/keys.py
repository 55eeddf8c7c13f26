"""The keys as the scripts take them. The names are built in :mod:`brimful.state.keys`."""

from __future__ import annotations

from brimful.state.keys import ADMISSION, admission_keys, everyone_channel, process_channel

BLESS = ("state", "start_only", "interactive", "batch", "heard", "commands", "pushed", "inbox", "workers")
"""The keys of ``mark_clean.lua``, in its order."""
SCRIPT_KEYS = {"exchange": ADMISSION, "mark_clean": BLESS}


class Keys:
    """All names of one API key's admission."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.names = admission_keys(tag)
        self.to = process_channel(tag, "")
        self.everyone = everyone_channel(tag)

    def of(self, script: str) -> list[str]:
        return [self.names[name] for name in SCRIPT_KEYS[script]]
