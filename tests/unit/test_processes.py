"""Helpers that look at processes: one that ends between two looks at it is no error."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from support.commands import nothing_left
from support.processes import alive, command_line, descendants, kill, variables

_CHILD = "print(flush=True); input()"


class EndsAfterTheFirstLook(psutil.Process):
    def is_running(self) -> bool:
        return True


@pytest.fixture(params=[psutil.Process, EndsAfterTheFirstLook])
def ended(request: pytest.FixtureRequest) -> psutil.Process:
    with subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        seen: psutil.Process = request.param(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        assert alive(seen)
        assert command_line(seen)[-1] == _CHILD
        assert variables(seen)
        process.kill()
    return seen


def test_one_that_has_ended_is_empty(ended: psutil.Process) -> None:
    kill(ended)
    assert (alive(ended), command_line(ended), variables(ended), descendants(ended.pid)) == (False, [], {}, [])
    nothing_left([ended])


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = psutil.Process(process.pid)
        process.stdout.read()  # to its end
        nothing_left([seen])
        kill(seen)
