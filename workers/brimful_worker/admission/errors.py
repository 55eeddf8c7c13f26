"""What a slot's holder may meet.

BrimfulError
├── StaleGrant   the grant came too late to the wire; it was given back, ask again
└── LeaseLost    the lease could not be renewed; the request must end
"""

from __future__ import annotations

from brimful.errors import BrimfulError


class StaleGrant(BrimfulError):
    """Too much time passed between the grant and the wire. Nothing was sent; slot and start are given back."""


class LeaseLost(BrimfulError):
    """The lease ended before the request did: Redis could not be reached in time, or forgot it."""
