"""Outputs in places where no file can be, and a disk that is full at every step of a run."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import BrimfulError, ExitCode, FleetError, UsageError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Unit
from brimful.run.display.display import Display
from brimful.run.options import RunOptions
from brimful.run.output.paths import Order, OutputFormat
from support.fake_driver import FakeDriver
from support.runs import identities, options, prompts, run


def _in(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / name).mkdir()
    return folder


PLACES: dict[str, tuple[Callable[[Path], Path | str], str]] = {
    "proc": (lambda _: "/proc/x", "-o /proc/x: cannot be written: "),
    "proc of a process": (lambda _: "/proc/self/x.jsonl", "-o /proc/self/x.jsonl: is not writable"),
    "sys": (lambda _: "/sys/x", "-o /sys/x: "),
    "a full device": (lambda _: "/dev/full", "-o /dev/full: is not a regular file"),
    "a terminal": (lambda _: "/dev/null", "is not a regular file; use -o - for standard output"),
    "a directory": (lambda tmp: tmp, "is a directory; name a file in it"),
    "below a file": (lambda tmp: tmp / "in.jsonl" / "out.jsonl", "there is no directory"),
    "no directory": (lambda tmp: tmp / "no" / "out.jsonl", "mkdir -p"),
    "a long name": (lambda tmp: tmp / ("x" * 300), "File name too long"),
    "a name too long with a suffix": (lambda tmp: tmp / ("x" * 248), "File name too long"),
    "a long path": (lambda tmp: tmp / "/".join(["x" * 200] * 30), "File name too long"),
    "a loop of links": (lambda tmp: tmp / "loop", "symbolic links"),
    "a directory beside it": (lambda tmp: _in(tmp / "d", "out.run.lines") / "out", "(", ),
    "a directory for the errors": (lambda tmp: _in(tmp / "d", "out.errors.jsonl") / "out", "(", ),
    "a directory for the sidecar": (lambda tmp: _in(tmp / "d", "out.run.json") / "out", "out.run.json"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fresh", [False, True], ids=["", "fresh"])
def test_an_output_that_cannot_be_written_is_named_before_anything_is_asked(
    tmp_path: Path, place: str, fresh: bool
) -> None:
    make, said = PLACES[place]
    source = prompts(tmp_path, 3)
    (tmp_path / "loop").symlink_to("loop")
    out = make(tmp_path)
    driver = FakeDriver()
    if fresh and place.startswith("a directory "):
        return  # it is moved aside
    with pytest.raises(UsageError) as caught:
        run(options(source, out=out, fresh=fresh), driver)
    assert said in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
    assert driver.asked == []


@pytest.fixture
def most_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Limits the size of every file that this process writes, as a full disk does; None: no limit."""
    monkeypatch.setattr(Display, "say", lambda *_: None)  # pytest captures what is printed in a file
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _error_of(asked: RunOptions, driver: FakeDriver) -> BrimfulError | None:
    try:
        run(asked, driver)
    except BrimfulError as error:
        return error
    return None


@pytest.mark.parametrize("form", ["jsonl", "input order", "parquet", "openai-batch"])
def test_a_disk_that_is_full_at_any_step_ends_the_run_resumable(
    tmp_path: Path, form: str, most_bytes: Callable[[int | None], None]
) -> None:
    out = tmp_path / ("out.parquet" if form == "parquet" else "out.jsonl")
    source = prompts(tmp_path, 30)

    def asked(**more: Any) -> RunOptions:
        order = Order.INPUT if form == "input order" else Order.COMPLETION
        kind = OutputFormat.OPENAI_BATCH if form == "openai-batch" else OutputFormat.ROLLOUTS
        return options(source, out=out, order=order, form=kind, **more)

    failed = Failure(Cause.SERVER_ERROR, "500", 500)

    def answer(unit: Unit, *_: int) -> str | Failure:
        return failed if unit.line % 10 == 3 else f"text {unit.line}"

    ended = []
    for size in (0, 1, 20, 119, 121, 300, 700, 1500, 2500, 4000, 6000, 8000, 12_000):
        most_bytes(size)
        error = _error_of(asked(), FakeDriver(answer, reverse=True))
        most_bytes(None)
        if error is not None:
            assert (type(error), error.exit_code) == (FleetError, ExitCode.INTERNAL), error
            assert "File too large" in str(error), error
            ended.append(size)
    assert len(ended) > 5
    run(asked())
    summary = run(asked(retry_errors=True))
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.exit_code) == (30, 0, 0)
    rollouts = Path(f"{out}.rollouts.jsonl") if form in ("parquet", "openai-batch") else out
    assert sorted(identities(rollouts)) == sorted((f"p{line}", 0, 0) for line in range(30))
    assert os.path.getsize(out) > 0
