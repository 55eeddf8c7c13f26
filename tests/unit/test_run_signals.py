"""Signals during a run: what counts as a press of Ctrl-C, and what the second press does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from brimful.errors import ExitCode

_RUN = """
import asyncio, os, signal, sys
from brimful.run import signals
from brimful.runtime import interrupt

interrupt.SAME_PRESS_S = float(sys.argv[1])
signals.LAST_RESORT_S = 0.05

async def main(handlers):
    handlers.attach(asyncio.get_running_loop())
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
    if not interrupt.SAME_PRESS_S:
        await asyncio.Event().wait()  # hangs

with signals.Signals(lambda: print("stop", flush=True), lambda: print("kill", flush=True)) as handlers:
    asyncio.run(main(handlers))
"""


@pytest.mark.parametrize(
    ("same_press_s", "printed", "code"),
    [
        (60.0, "stop\n", 0),  # a wrapper (make, uv run) forwards the SIGINT that the terminal has already sent
        (0.0, "stop\nstop\nkill\n", ExitCode.INTERRUPTED),
    ],
)
def test_two_signals_within_the_debounce_are_one_press(same_press_s: float, printed: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(same_press_s)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=30,
    )
    assert (done.stdout, done.returncode) == (printed, code)
