"""Whether what the embedded Valkey holds is worth a file when nobody uses it any more."""

from __future__ import annotations

import re

from brimful_worker.local.server.resp import Resp

_WORTHLESS = re.compile(
    r"_kombu\.binding\.|unacked_mutex|.*\.reply\.celery\.pidbox|celery\.pidbox|celeryev|brimful:tags$"
)
"""Keys that every start makes anew."""
_ADMISSION = re.compile(r"brimful:\{(?!run:)[^}]*\}:(\w+)$")
_SCAN = 1000


def worth_keeping(connection: Resp) -> bool:
    """True while any key is left that a later start would miss: starts of the last window, tokens spent of a budget,
    limits that were set by hand, a run, queued or unacknowledged tasks, results."""
    cursor = "0"
    while True:
        reply = connection.call("SCAN", cursor, "COUNT", _SCAN)
        assert isinstance(reply, list)
        cursor, keys = str(reply[0]), reply[1]
        assert isinstance(keys, list)
        for key in map(str, keys):
            admission = _ADMISSION.match(key)
            if admission:
                if _admission_matters(connection, key, admission[1]):
                    return True
            elif not _WORTHLESS.match(key):
                return True
        if cursor == "0":
            return False


def _admission_matters(connection: Resp, key: str, name: str) -> bool:
    """Leases, waiters and addresses ended with the processes; what counts from before does not."""
    base = key.removesuffix(name)
    if name == "limits":
        return bool(_hash(connection, key).keys() - {"rev"})
    if name == "state":
        return int(_hash(connection, key).get("spent", 0)) > 0
    if name in ("starts", "tokens"):
        limits = {**_hash(connection, f"{base}defaults"), **_hash(connection, f"{base}limits")}
        span = int(float(limits.get("window_ms", 0))) + int(float(limits.get("guard_ms", 0)))
        newest = connection.call("ZRANGE", key, -1, -1, "WITHSCORES")
        now = connection.call("TIME")
        assert isinstance(newest, list)
        assert isinstance(now, list)
        return bool(newest) and float(str(newest[1])) > int(str(now[0])) * 1000 - span
    return False


def _hash(connection: Resp, key: str) -> dict[str, str]:
    flat = connection.call("HGETALL", key)
    assert isinstance(flat, list)
    return dict(zip(map(str, flat[::2]), map(str, flat[1::2]), strict=True))
