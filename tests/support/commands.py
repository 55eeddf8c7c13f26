"""The ``brimful`` command as a user runs it: in its own process, with its own environment.

Most of these processes are forked (:mod:`support.forked`), since each start would cost half a second of CPU.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

from support.forked import Forked, can_fork, forked
from support.processes import alive, descendants, kill
from support.startup import python_path
from support.waiting import wait_until


def environment(**more: str) -> dict[str, str]:
    """The environment of a user's shell with the test's own state directory, and ``more``.

    A fleet that a command brings has one worker, since each costs a second of CPU, unless the test names more.
    """
    names = ("PATH", "HOME", "XDG_STATE_HOME", "LANG", "TMPDIR", "PYTHONPATH")
    if "PYTHONPATH" in more:
        more["PYTHONPATH"] = python_path(more["PYTHONPATH"])
    return {"BRIMFUL_WORKERS": "1", **{name: os.environ[name] for name in names if name in os.environ}, **more}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "brimful.cli", *map(str, arguments)]


def brimful(
    *arguments: str | Path, timeout: float = 120, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    shell = environment(**env)
    if can_fork(shell):
        return forked("brimful.cli", *map(str, arguments), env=shell, stdin=stdin, timeout=timeout)
    return subprocess.run(command(*arguments), env=shell, capture_output=True, text=True, timeout=timeout, input=stdin)


def brimful_in_process(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As :func:`brimful`, in this process: for commands that start nothing, where the process is not what is tested."""
    from brimful.cli.commands import run_command

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    before = dict(os.environ)
    shell = environment(**env)
    try:
        os.environ.clear()
        os.environ.update(shell)
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = run_command([str(argument) for argument in arguments])
    finally:
        os.environ.clear()
        os.environ.update(before)
    said = [stream.buffer.getvalue().decode() for stream in streams]
    return subprocess.CompletedProcess(command(*arguments), code, *said)


class Running:
    """A ``brimful`` command in the background. All processes that it has started are ended with it."""

    forks: tuple[str, ...] = ("run", "up")
    """Commands that may be forked."""

    def __init__(self, *arguments: str | Path, stdin: Path | None = None, **env: str) -> None:
        """``stdin``: a file to read; None: nothing."""
        self.family: set[psutil.Process] = set()
        shell = environment(**env)
        with open(stdin or os.devnull, "rb") as file:
            if arguments[0] in self.forks and can_fork(shell):
                words = map(str, arguments)
                self.process: subprocess.Popen[str] | Forked = Forked(
                    "brimful.cli", *words, env=shell, stdin=file.fileno(), new_session=True
                )
                return
            self.process = subprocess.Popen(
                command(*arguments),
                env=shell,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for child in self.family:
            kill(child)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def look(self) -> set[psutil.Process]:
        """Record all processes that it has started so far, grandchildren too."""
        if self.process.poll() is None:
            self.family.update(descendants(self.process.pid))
        return self.family

    def line_with(self, word: str) -> str:
        """The next line of its output that holds ``word``."""
        return self.text_until(word).splitlines(keepends=True)[-1]

    def text_until(self, word: str) -> str:
        """Its output up to the next line that holds ``word``."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if word in line:
                return "".join(seen)
        raise AssertionError(f"it ended without printing {word!r}: {''.join(seen)}")

    def interrupt(self, timeout: float = 60) -> int:
        """Ctrl-C as a terminal sends it: to the whole foreground group."""
        self.look()
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout)


class RunningAnew(Running):
    """As :class:`Running`, in a new interpreter."""

    forks = ()


def nothing_left(family: Collection[psutil.Process]) -> None:
    """Fails with a timeout if processes outlive their command."""
    wait_until(lambda: not any(map(alive, family)), "every process of the command to be gone")


def records(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [json.loads(line) for line in file]


def write_prompts(path: Path, count: int) -> Path:
    path.write_text(
        "".join(json.dumps({"prompt": f"prompt {place}", "id": f"p{place}"}) + "\n" for place in range(count))
    )
    return path
