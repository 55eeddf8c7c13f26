"""Errors of the limiter; those of a slot itself are the admission's.

BrimfulError
├── UsageError
│   └── InvalidLimit     a number that cannot be a limit; also a ValueError
├── SlotTimeout          no slot came in time; also a TimeoutError
└── FleetError
    └── LimiterClosed    the limiter was closed while a slot was waited for, or before
"""

from __future__ import annotations

from brimful.errors import BrimfulError, FleetError, UsageError


class InvalidLimit(UsageError, ValueError):
    """A number that cannot be a limit. The message names the argument."""


class SlotTimeout(BrimfulError, TimeoutError):
    """No slot came within the timeout. Nothing was taken."""


class LimiterClosed(FleetError):
    """The limiter is closed: it grants nothing any more."""
