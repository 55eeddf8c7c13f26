"""Runs tests again and again in one copy of the tree: each time in a fork of this process, which has imported what the
tests need from other packages, but nothing of ours.

``python -m support.mutants.lane COPY`` reads one JSON object a line: tests (arguments of pytest), timeout (seconds),
learn (true: import what the run has imported). It answers each with outcome ("passed", "failed", "timeout"), seconds,
and by (the first test that failed). It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil
import pytest

_PASSED, _NO_TESTS = 0, 5
_DIE_WITH_PARENT = 1


def serve(copy: Path) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        answer = run(copy, order["tests"], order["timeout"])
        if order.get("learn"):
            _import_others(copy)
        print(json.dumps(answer), flush=True)


def run(copy: Path, tests: list[str], timeout_s: float) -> dict[str, Any]:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _in_the_fork(copy, tests)
    with contextlib.closing(_PidFile(child)) as file:
        ended = bool(select.select([file], [], [], timeout_s)[0])
    leftovers = _descendants(child)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    for process in leftovers:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    outcome = "timeout" if not ended else "passed" if code == _PASSED else "failed"
    if code == _NO_TESTS:
        raise SystemExit(f"no tests in {tests}")
    return {
        "outcome": outcome,
        "seconds": time.monotonic() - began,
        "by": _first_failure(copy) if ended and code else "",
    }


class _PidFile:
    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


def _in_the_fork(copy: Path, tests: list[str]) -> None:
    code = 3
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        output = os.open(copy / ".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", f"--basetemp={copy}/.tmp"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins were imported before
        code = int(pytest.main([*options, *tests]))
        foreign = [name for name, module in sys.modules.items() if _is_foreign(copy, module)]
        (copy / ".modules").write_text("\n".join(foreign))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _is_foreign(copy: Path, module: Any) -> bool:
    file: str | None = getattr(module, "__file__", None)
    return file is not None and not Path(file).is_relative_to(copy) and module.__name__ != "__main__"


def _import_others(copy: Path) -> None:
    for name in (copy / ".modules").read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _first_failure(copy: Path) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", (copy / ".output").read_text(errors="replace"), re.MULTILINE)
    return found[1] if found else "an error while the tests were collected"


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
