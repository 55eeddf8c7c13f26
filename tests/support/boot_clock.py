"""``boot_time()``, moved by hand."""

from __future__ import annotations

from types import ModuleType

import pytest


class BootClock:
    """The time in ``now``, in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    @property
    def ms(self) -> int:
        return round(self.now * 1000)

    def used_by(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> BootClock:
        """These modules read this clock. Returns it."""
        for module in modules:
            patch.setattr(module, "boot_time", self)
        return self
