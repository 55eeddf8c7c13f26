"""What a local fleet's child process runs first: ``python -m brimful_worker.local.processes.child FD ROLE ARGUMENT…``.

It watches the owner's lifeline, then becomes what ROLE says, in this same process:
``worker`` a brimful worker · ``celery`` a Celery command · ``gateway`` the mock gateway.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

ORPHAN_S = 5.0
"""Seconds that a child whose owner died has for what it has on the wire."""


def main(arguments: list[str]) -> int:
    fd, role, *rest = arguments
    threading.Thread(target=_watch, args=(int(fd),), name="brimful-lifeline", daemon=True).start()
    if role == "celery":
        from celery.__main__ import main as celery

        sys.argv = ["celery", *rest]
        celery()
        return 0
    if role == "gateway":
        from brimful_worker.local.processes.mock import serve

        return serve(rest[0])
    return _worker(rest)


def _worker(arguments: list[str]) -> int:
    """``brimful worker`` without its command line, which a worker need not import."""
    from brimful.errors import BrimfulError
    from brimful_worker.startup import run_worker

    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    try:
        return run_worker(concurrency=int(options["--concurrency"]), name=options["--name"])
    except BrimfulError as error:
        print(f"brimful worker: {error}", file=sys.stderr)
        return int(error.exit_code)


def _watch(fd: int) -> None:
    """Blocks until the owner is gone, however it went; then SIGTERM to ourselves, and SIGKILL if that is not heeded."""
    os.set_inheritable(fd, False)
    try:
        os.read(fd, 1)  # nobody ever writes: it returns at the end of the pipe
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
