"""Kills a worker that stands still: ``python -I -S guardian.py BEATS WORKER SILENCE_MS``. Standard library only.

A worker that is stopped or frozen as a whole keeps its connections to the provider, while its leases end in Redis and
its slots go to others. Nothing inside it can prevent that. So the worker writes beats to a pipe whose read end is the
descriptor ``BEATS``: each is a line with the number of milliseconds for which it may be silent from now on; before the
first one that is ``SILENCE_MS``. A worker silent for longer is killed: the kernel closes its connections, and its work
is delivered to others. When the pipe closes, the worker has ended, and this process ends too.
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
"""The longest wait without reading the clock."""
OVERSLEPT_S = 0.5
"""A wait this much longer: this process stood still too, or the machine is too busy to judge the worker."""
CHANCE_S = 2.5
"""The worker then gets this long to send a beat; beats are up to a second apart."""


def boot_time() -> float:
    """Seconds, including suspension of the machine where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def guard(beats: int, worker: int, silence_s: float) -> None:
    """Returns when the worker has ended or was killed."""
    handle = os.pidfd_open(worker) if hasattr(os, "pidfd_open") else None
    if os.getppid() != worker:
        return  # it has ended already, and its pid may have been reused
    last_beat = looked = boot_time()
    until = last_beat + silence_s
    while True:
        now = boot_time()
        if now - looked > LOOK_S + OVERSLEPT_S:
            until = max(until, now + CHANCE_S)
        looked = now
        if now >= until:
            _kill(worker, handle, now - last_beat)
            return
        readable, _, _ = select.select([beats], [], [], min(LOOK_S, until - now))
        if readable:
            lines = os.read(beats, 65536)
            if not lines:
                return
            last_beat = boot_time()
            until = last_beat + int(lines.split()[-1]) / 1000


def _kill(worker: int, handle: int | None, silent_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        elif os.getppid() == worker:
            os.kill(worker, signal.SIGKILL)
    message = f"brimful: killed worker {worker}: no heartbeat for {silent_s:.1f} s, so other processes get its slots\n"
    with contextlib.suppress(OSError):
        os.write(2, message.encode())


def main() -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker only
    guard(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000)
    os._exit(0)


if __name__ == "__main__":
    main()
