"""The live display on a real pseudo-terminal, judged by the screen of a terminal emulator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.commands import command, environment, write_prompts
from support.terminal import Terminal, Wrapping

_SHOWS = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from brimful.packing.units import DriveStatus
from brimful.run.display.progress import Progress
from brimful.run.display.summary import Summary
from brimful.run.display.terminal import TerminalDisplay
from support.runs import fleet

async def gauges():
    return fleet(waiting=1234, pause_s=3.0, pause_reason="429 rate_limited", next_start_s=0.2)

async def main():
    live = TerminalDisplay(gauges)
    for second, said in enumerate(sys.stdin):
        word, _, text = said.strip().partition(" ")
        if word == "show":
            retries = {"timeout": 3, "server_error": 12, "connection": 4}
            drive = DriveStatus(queued=256, pack=100)
            counts = 1000 + second, 2, 2000 + second, 2000 + second, 1234567
            await live.show(Progress(125.0 + second, 1291, 1291, *counts, retries=retries, drive=drive))
        elif word == "say":
            live.say(text)
        elif word == "warn":
            print(text, file=sys.stderr)
        else:
            live.close()
        print("done", file=sys.__stdout__, flush=True)

asyncio.run(main())
"""
PAIRS = [
    "prompts", "rollouts", "/min", "slots 16/16", "window 583/600", "waiting 1,234", "queued 256", "pack 100",
    "connection 4", "server_error 12", "timeout 3", "paused 3 s (429 rate_limited)", "failed 2", "tokens 1,234,567",
    " to go",
]  # fmt: skip


class _Shown(Terminal):
    """The display, which does what :meth:`do` says."""

    def __init__(self, columns: int, *, wrapping: bool = False) -> None:
        super().__init__(
            [sys.executable, "-c", _SHOWS, str(Path(__file__).parents[1])], environment(), columns=columns,
            wrapping=wrapping,
        )  # fmt: skip

    def do(self, what: str) -> list[str]:
        """Returns the lines on the screen afterwards."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"
        return self.read().splitlines()


def _whole(lines: list[str], pairs: list[str]) -> None:
    """Each figure stands once, and in one line."""
    for pair in pairs:
        assert sum(pair in line for line in lines) == 1, (pair, lines)


@pytest.mark.parametrize("columns", [40, 60, 80, 132])
def test_no_pair_of_label_and_value_is_divided(columns: int) -> None:
    with _Shown(columns) as terminal:
        terminal.do("show")
        lines = terminal.do("show")
        _whole(lines, PAIRS)
        assert max(map(len, lines)) < columns
        assert terminal.do("close") == []


@pytest.mark.parametrize("wrapping", [False, True], ids=["cutting", "wrapping"])
def test_a_resize_leaves_nothing_torn(wrapping: bool) -> None:
    with _Shown(100, wrapping=wrapping) as terminal:
        terminal.do("say first words")
        terminal.do("show")
        for columns in (100, 80, 40, 52, 120, 33, 80):
            terminal.resize(columns)
            lines = terminal.do("show")
            assert lines[0] == "brimful: first words"
            if columns >= 40:
                _whole(lines[1:], PAIRS)
            assert sum("prompts" in line for line in lines) == 1
        said = terminal.do("say more words")
        assert said[:2] == ["brimful: first words", "brimful: more words"]
        terminal.do("show")
        terminal.do("warn a library's words")
        _whole(terminal.do("show")[3:], PAIRS)
        assert terminal.do("close") == ["brimful: first words", "brimful: more words", "a library's words"]


def test_a_block_at_the_top_of_the_screen_leaves_no_copies_in_tmux_s_history() -> None:
    with _Shown(80, wrapping=True) as terminal:
        for _ in range(3):
            _whole(terminal.do("show")[:], PAIRS[:-1])
        assert terminal.do("close") == []
        assert isinstance(terminal.screen, Wrapping)
        assert terminal.screen.copies == 0


def test_it_leaves_the_screen_to_messages_and_the_table(tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    run = command("run", source, "-o", out, "--rehearse", "--workers", "1", "--pack", "off", "--max-tokens", "32")
    with Terminal(run, environment(), wrapping=True) as terminal:
        terminal.wait_for("/60 prompts")
        terminal.resize(40)
        terminal.wait_for("rate-limited 0")
        terminal.resize(80)
        shown = terminal.wait_for("took")
        assert terminal.process.wait(60) == 0
        shown = terminal.read()
    assert "prompts    60: 60 sampled, 0 failed" in shown
    assert "API calls  60, rate-limited 0" in shown
    assert "/60 prompts" not in shown
    assert "%" not in shown
    assert not terminal.screen.cursor.hidden
