"""Ends a worker that stands still: ``python -I -S guardian.py BEATS WORKER SILENCE_MS``; a process, stdlib only.

A worker that is stopped or frozen as a whole keeps its connections at the provider while its leases end in Redis and
its slots go to others; nothing inside it can prevent that. So the worker writes beats into the pipe whose read end is
``BEATS``, each a line: for how many milliseconds it may be silent from now on; until the first one, which it may be
stopped before, that is ``SILENCE_MS``. When it is silent for longer, it is killed; the kernel closes its connections,
and its work comes back to others. When the pipe closes, the worker has ended, and so does this process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import NoReturn

LOOK_S = 0.5
"""The longest wait without a look at the clock."""
OVERSLEPT_S = 0.5
"""A look that comes so much later: this process stood still too, or the machine is too busy to judge anybody by."""
CHANCE_S = 2.5
"""The worker then has so long to be heard: its beats are up to a second apart."""


def steady() -> float:
    """Seconds, suspensions of the machine included, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def guard(beats: int, worker: int, silence_s: float) -> None:
    """Returns when the worker has ended or was killed."""
    handle = os.pidfd_open(worker) if hasattr(os, "pidfd_open") else None
    if os.getppid() != worker:
        return  # it ended before we looked, and its number may be somebody else's
    heard = looked = steady()
    until = heard + silence_s
    while True:
        now = steady()
        if now - looked > LOOK_S + OVERSLEPT_S:
            until = max(until, now + CHANCE_S)
        looked = now
        if now >= until:
            _kill(worker, handle, now - heard)
            return
        readable, _, _ = select.select([beats], [], [], min(LOOK_S, until - now))
        if readable:
            told = os.read(beats, 65536)
            if not told:
                return
            heard = steady()
            until = heard + int(told.split()[-1]) / 1000


def _kill(worker: int, handle: int | None, silent_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        elif os.getppid() == worker:
            os.kill(worker, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.write(
            2,
            f"brimful: worker {worker} stood still for {silent_s:.1f} s (stopped or frozen) and was killed, "
            f"since its slots go to others\n".encode(),
        )


def main() -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker, and by nothing else
    with contextlib.suppress(KeyboardInterrupt):
        guard(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000)
    os._exit(0)


if __name__ == "__main__":
    main()
