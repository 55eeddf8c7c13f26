"""Processes that tests fork from a template behave as new ones of ``python -m``."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from support.forked import Forked, can_fork, forked
from support.waiting import wait_until

ENV = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}


def test_its_output_its_exit_code_and_what_it_reads() -> None:
    done = forked("json.tool", "--compact", env=ENV, stdin='{"a": "é"}')
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":"\\u00e9"}\n', "")
    done = forked("json.tool", env=ENV, stdin="{")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Expecting property name" in done.stderr
    assert forked("brimful.cli", "validate", "-", env=ENV, stdin="").returncode == 2


def test_it_has_its_own_environment_directory_session_and_streams(tmp_path: Path) -> None:
    process = Forked("json.tool", env=ENV, stdin=subprocess.PIPE, new_session=True)
    seen = psutil.Process(process.pid)
    try:
        assert seen.cwd() == str(tmp_path)
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        wait_until(
            lambda: set(os.listdir(f"/proc/{process.pid}/fd")) == {"0", "1", "2"}, "its streams and nothing else"
        )
        assert process.poll() is None
    finally:
        process.kill()
        wait_until(lambda: seen.status() == psutil.STATUS_ZOMBIE, "its end")
        assert process.wait(60) == -signal.SIGKILL
        wait_until(lambda: not seen.is_running(), "nothing of it to be left")
        for file in (process.stdin, process.stdout):
            assert file is not None
            file.close()


def test_one_that_does_not_end_in_time_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked("http.server", "--bind", "127.0.0.1", "0", env=ENV, timeout=0.2)


def test_what_sets_up_an_interpreter_needs_a_new_one() -> None:
    assert can_fork(ENV)
    assert not can_fork({**ENV, "PYTHONIOENCODING": "latin-1"})
    assert not can_fork({**ENV, "LC_ALL": "tlh"})
