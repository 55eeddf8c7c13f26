"""Shell completion, installed by the command itself and used in an interactive bash on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

from support.commands import environment

_BASH = shutil.which("bash") or "/bin/bash"


class _Bash:
    """An interactive bash; ``type`` returns what it has printed since, up to ``until``."""

    def __init__(self, home: Path, path: str) -> None:
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [_BASH, "--rcfile", str(home / ".bashrc"), "-i"],
            env=environment(HOME=str(home), PATH=path, TERM="xterm", PS1="$ "),
            cwd=home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> _Bash:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def type(self, keys: str, until: str) -> str:
        os.write(self._terminal, keys.encode())
        seen = ""
        while until not in seen:
            ready, _, _ = select.select([self._terminal], [], [], 60)
            assert ready, f"waited for {until!r}: {seen!r}"
            seen += os.read(self._terminal, 65536).decode()
        return seen


def test_tab_completes_commands_options_and_choices(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    (tmp_path / "prompts.jsonl").touch()
    done = subprocess.run(
        [_BASH, "-c", "brimful --install-completion; exit $?"],  # which shell it is, it finds itself
        env=environment(HOME=str(tmp_path), PATH=path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "bash completion installed" in done.stdout
    with _Bash(tmp_path, path) as bash:
        bash.type("echo rea''dy\n", "ready")
        bash.type("brimful val\t", "validate ")
        bash.type("\x15brimful run prom\t", "prompts.jsonl ")
        bash.type("--ord\t", "er ")
        bash.type("inp\t", "ut ")
        listed = bash.type("\x15brimful limits \t\t\t", "show")
        assert "set" in listed
        bash.type("\x15brimful run --provider ope\t\t\t", "openrouter")
