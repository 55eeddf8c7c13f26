"""Entry point of a local fleet's child processes: ``python -m brimful_worker.local.processes.child FD ROLE ARGUMENT…``.

It watches the owner's pipe, then becomes what ROLE says in this same process: ``worker`` (a brimful worker), ``celery``
(a Celery command), ``serve`` (the front door), ``run`` (``brimful run``) or ``gateway`` (the mock gateway).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module

ORPHAN_S = 5.0
"""Seconds that a child has for its requests on the wire after its owner has died."""


def main(arguments: list[str]) -> int:
    fd, role, *rest = arguments
    threading.Thread(target=_end_with_owner, args=(int(fd),), name="brimful-owner", daemon=True).start()
    if role == "celery":
        from celery.__main__ import main as celery

        sys.argv = ["celery", *rest]
        celery()
        return 0
    if role == "gateway":
        from brimful_worker.local.processes.mock import serve

        return serve(rest[0])
    if role == "run":
        sys.argv = ["brimful", "run", *rest]
        import_module("brimful.cli").main()  # a room that no room of the workers' imports
        return 0
    from brimful.errors import BrimfulError

    try:
        return _serve(rest[0]) if role == "serve" else _worker(rest)
    except BrimfulError as error:
        print(f"brimful {role}: {error}", file=sys.stderr)
        return int(error.exit_code)


def _serve(port: str) -> int:
    from brimful_worker.local.processes.door import serve

    serve(port)
    return 0


def _worker(arguments: list[str]) -> int:
    """``brimful worker`` without the command line, whose imports would slow its start."""
    from brimful_worker.startup import run_worker

    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    return run_worker(concurrency=int(options["--concurrency"]), name=options["--name"])


def _end_with_owner(fd: int) -> None:
    """Wait until the owner has ended, by kill -9 too; then send this process SIGTERM, and SIGKILL after a while."""
    os.set_inheritable(fd, False)
    try:
        os.read(fd, 1)  # nobody writes: it returns when the pipe is closed
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
