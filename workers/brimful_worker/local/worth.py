"""Whether what the embedded Valkey holds is worth a file when nobody uses it any more."""

from __future__ import annotations

import re

from brimful_worker.local.resp import Resp

_WORTHLESS = re.compile(
    r"_kombu\.binding\.|unacked_mutex|.*\.reply\.celery\.pidbox|celery\.pidbox|celeryev|brimful:tags$"
)
"""Keys that every start makes anew."""
_SCAN = 1000


def worth_keeping(connection: Resp) -> bool:
    """True while any key is left that a later start would miss: a window's starts, a run, queued or unacknowledged
    tasks, results, limits that were set."""
    cursor = "0"
    while True:
        reply = connection.call("SCAN", cursor, "COUNT", _SCAN)
        assert isinstance(reply, list)
        cursor, keys = str(reply[0]), reply[1]
        assert isinstance(keys, list)
        if any(not _WORTHLESS.match(str(key)) for key in keys):
            return True
        if cursor == "0":
            return False
