"""A run from its options to the exit code, on a real Redis with a fake driver."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.addresses import FleetAddress
from brimful.config import Settings
from brimful.errors import BrimfulError, ExitCode, FleetError
from brimful.outcome import Cause, Failure
from brimful.run.display.terminal import TerminalDisplay
from brimful.run.launch import DisplayOptions, run_to_end
from brimful.run.prepare import Prepared
from brimful.state.runs.heartbeat import Heartbeat
from brimful.state.status import Status
from brimful_worker.local.server.valkey import Valkey
from support.fake_driver import FakeDriver
from support.runs import fleet, options, records, write_lines

MakeDriver = Callable[[FleetAddress, Prepared, Heartbeat | None], FakeDriver]


def _with(driver: FakeDriver) -> MakeDriver:
    return lambda address, prepared, heartbeat: driver


def test_json_and_the_next_command(tmp_path: Path, valkey: Valkey, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = write_lines(tmp_path / "in.txt", ["a", "b", "c"]), tmp_path / "out.jsonl"
    settings = Settings.load(redis_url=valkey.url)
    fault = Failure(Cause.CONTENT_FILTER, "400: no", 400, permanent=True)
    shown = DisplayOptions(
        json=True, progress=False, command=("brimful", "run", str(source), "-o", "out put.jsonl", "--fresh")
    )
    driver = FakeDriver(lambda unit, *_: fault if unit.line == 2 else "ok")
    assert run_to_end(options(source, out=out), settings, shown, _with(driver)) is ExitCode.FAILURES
    found = json.loads(capfd.readouterr().out)
    names = "requests rollouts succeeded failed resumed starts attempts rate_limited tokens seconds output"
    assert found.keys() >= set(names.split())
    assert (found["requests"], found["succeeded"], found["failed"], found["attempts"], found["starts"]) == (
        3,
        2,
        1,
        3,
        3,
    )
    assert found["next"] is None  # asking the same again will not help
    assert (found["failed_passing"], found["failure_messages"]) == (0, {"content_filter": "400: no"})
    assert found["errors"] == f"{out}.errors.jsonl"
    # Nothing is left to ask: no driver, and no Redis, is needed.
    asked = options(source, out=out)
    again = run_to_end(asked, Settings.load(redis_url="redis://127.0.0.1:9/0"), DisplayOptions(progress=False))
    assert again is ExitCode.FAILURES
    printed = capfd.readouterr().err
    assert "3: 2 sampled, 1 failed" in printed
    assert "1: content_filter 1 – 400: no" in printed
    assert f"correct the lines ({out.name}.errors.jsonl names them), then type the command again" in printed
    assert "next " not in printed


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "no provider URL"),
        ({"redis_url": "redis://127.0.0.1:9/0"}, "127.0.0.1:9"),
        ({"key": "set"}, "cannot reach the provider at 127.0.0.1:9"),
    ],
)
def test_a_fresh_run_that_does_not_begin_leaves_the_old_files_in_their_places(
    tmp_path: Path,
    valkey: Valkey,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    said: str,
    suffix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    source, out = write_lines(tmp_path / "in.txt", ["a", "b"]), tmp_path / f"out{suffix}"
    shown = DisplayOptions(progress=False)
    run_to_end(options(source, out=out), Settings.load(redis_url=valkey.url), shown, _with(FakeDriver()))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    if settings.get("key"):
        monkeypatch.setenv("ACS_API_BASE", "http://127.0.0.1:9/v1")
        monkeypatch.setenv("ACS_API_KEY", "a-key-of-a-test")
    capfd.readouterr()
    with pytest.raises(BrimfulError, match=said):
        run_to_end(
            options(source, out=out, fresh=True),
            Settings.load(redis_url=settings.get("redis_url")),
            shown,
            _with(FakeDriver()),
        )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert "kept as" not in capfd.readouterr().err
    # Of the run in its place again nothing is left to ask. A fresh one that begins says where the old files are.
    assert run_to_end(options(source, out=out), Settings.load(), shown) is ExitCode.OK
    fresh = run_to_end(
        options(source, out=out, fresh=True), Settings.load(redis_url=valkey.url), shown, _with(FakeDriver())
    )
    assert fresh is ExitCode.OK
    assert f"the old output is kept as {out}.before-" in capfd.readouterr().err


def test_transient_failures_are_offered_for_retry(
    tmp_path: Path, valkey: Valkey, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = write_lines(tmp_path / "in.txt", ["a", "b"]), tmp_path / "out.jsonl"
    shown = DisplayOptions(progress=False, command=("brimful", "run", str(source), "-o", "out put.jsonl", "--fresh"))
    driver = FakeDriver(lambda unit, *_: Failure(Cause.SERVER_ERROR, "503: away", 503) if unit.line == 2 else "ok")
    settings = Settings.load(redis_url=valkey.url)
    assert run_to_end(options(source, out=out), settings, shown, _with(driver)) is ExitCode.FAILURES
    printed = capfd.readouterr().err
    assert f"brimful run {source} -o 'out put.jsonl' --retry-errors" in printed
    assert "to do" not in printed


def test_rollouts_to_standard_output(tmp_path: Path, valkey: Valkey, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}, "{", {"prompt": "c"}])
    settings = Settings.load(redis_url=valkey.url)
    code = run_to_end(options(source, out="-"), settings, DisplayOptions(progress=False), _with(FakeDriver()))
    printed = capfdbinary.readouterr()
    assert code is ExitCode.FAILURES
    assert [json.loads(line)["line"] for line in printed.out.splitlines()] == [1, 3]
    assert f"{source}:2: is not JSON".encode() in printed.err
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["in.jsonl"]


def test_a_failed_fleet_ends_the_run_and_keeps_its_rollouts(
    tmp_path: Path, valkey: Valkey, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = write_lines(tmp_path / "in.txt", ["a"] * 20), tmp_path / "out.jsonl"

    class Failing(FakeDriver):
        async def deliveries(self, units, *, total):  # type: ignore[no-untyped-def]
            count = 0
            async for batch in super().deliveries(units, total=total):
                yield batch
                if (count := count + 1) == 2:
                    raise FleetError("Redis was away for too long")

    settings, shown = Settings.load(redis_url=valkey.url), DisplayOptions(command=("brimful", "run", "in.txt"))
    with pytest.raises(FleetError, match="away for too long"):
        run_to_end(options(source, out=out), settings, shown, _with(Failing()))
    printed = capfd.readouterr().err
    assert "20: 6 sampled, 0 failed, 14 left" in printed
    assert "brimful run in.txt" in printed
    assert len(records(out)) == 6
    assert run_to_end(options(source, out=out), settings, shown, _with(FakeDriver())) is ExitCode.OK


def test_a_disk_that_fails_ends_the_run_and_the_same_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fsync = tmp_path / "out.jsonl", os.fsync
    asked = options(write_lines(tmp_path / "in.txt", ["a"] * 20), out=out, rehearse=True, workers=1)

    def failing(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(out):
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(
            FleetError, match=r"cannot write .*out\.jsonl: Input/output error; the same command"
        ) as caught:
            run_to_end(asked, Settings.load(), DisplayOptions(progress=False))
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert run_to_end(asked, Settings.load(), DisplayOptions(progress=False)) is ExitCode.OK
    assert sorted(record["line"] for record in records(out)) == list(range(1, 21))


async def test_the_live_display_shows_figures_messages_and_the_end_table() -> None:
    import io

    from rich.console import Console

    from brimful.run.display.progress import Progress
    from brimful.run.display.summary import Summary

    async def gauges() -> Status:
        return fleet(waiting=3)

    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    live = TerminalDisplay(gauges, console=console)
    await live.show(Progress(10, 100, 100, 40, 2, 80, 80, 1234))
    live.say("a word [in brackets]")
    live.end(Summary(requests=100, rollouts=80, succeeded=40, output="-", next="brimful run -o out.jsonl"))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("42/100 prompts", "slots 16/16", "window 583/600", "a word [in brackets]", "out.jsonl"):
        assert words in drawn
