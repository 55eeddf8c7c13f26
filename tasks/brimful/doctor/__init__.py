"""What ``brimful doctor`` looks at. Reads only; spends no token and no start of the key's beyond one GET."""

from brimful.doctor.check import Check, Level, failed
from brimful.doctor.fleet import fleet_checks
from brimful.doctor.limits import limit_checks
from brimful.doctor.machine import machine_checks, variable_checks
from brimful.doctor.provider import provider_checks
from brimful.doctor.server import server_checks

__all__ = [
    "Check",
    "Level",
    "failed",
    "fleet_checks",
    "limit_checks",
    "machine_checks",
    "provider_checks",
    "server_checks",
    "variable_checks",
]
