"""Errors of the admission.

BrimfulError
├── StaleGrant           the grant reached the wire too late; it was given back, ask again
├── LeaseLost            the lease could not be renewed; the request was ended
└── FleetError
    ├── Retired          this admission grants nothing any more: its API key was replaced
    ├── SchemaMismatch   the fleet on this Redis uses another version of the admission's schema
    ├── EvictingRedis    Redis may drop keys when its memory is full
    ├── TooFar           a round trip to Redis takes longer than a quarter of a lease
    └── ScriptFailed     Redis runs the admission's script, and the script fails
"""

from __future__ import annotations

from brimful.errors import BrimfulError, FleetError


class StaleGrant(BrimfulError):
    """Too much time passed between the grant and the wire. Nothing was sent; slot and start are given back."""


class LeaseLost(BrimfulError):
    """The lease ended before the request did: Redis could not be reached in time, or forgot it."""


class Retired(FleetError):
    """The admission's API key was replaced; ask the new key's admission."""


class SchemaMismatch(FleetError):
    """This process and the fleet on its Redis use different versions of the admission's keys and scripts."""


class EvictingRedis(FleetError):
    """Redis may drop the admission's keys when its memory is full: its ``maxmemory-policy`` is not noeviction."""


class TooFar(FleetError):
    """Redis is so far away that leases would end before they are renewed; ``str()`` says which would do."""


class ScriptFailed(FleetError):
    """The admission's Lua script raised an error on the server; ``str()`` holds its text."""
