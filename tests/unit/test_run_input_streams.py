"""Input that can be read only once: pipes and standard input."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brimful.errors import InputError
from brimful.run.display.summary import Summary
from support.fake_driver import FakeDriver
from support.runs import options, records, run

Feed = Callable[..., Path]


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Feed]:
    """Creates a pipe and a thread that writes lines to it."""
    path = tmp_path / "pipe"
    writers: list[threading.Thread] = []

    def feed(*lines: str) -> Path:
        path.unlink(missing_ok=True)  # a run that died may still hold the one before open
        os.mkfifo(path)

        def write() -> None:
            try:
                with path.open("w") as file:
                    file.writelines(f"{line}\n" for line in lines)
            except BrokenPipeError:  # its reader left early
                pass

        writers.append(threading.Thread(target=write))
        writers[-1].start()
        return path

    yield feed
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()


LINES = [f'{{"id": "p{line}", "prompt": "say {line}"}}' for line in range(40)]


def _sampled(out: Path) -> list[str]:
    return sorted(record["id"] for record in records(out))


def _run(pipe: Path, out: Path, driver: FakeDriver | None = None, **more: object) -> Summary | None:
    return run(options(pipe, out=out, **more), driver)  # type: ignore[arg-type]


def test_a_stream_is_sampled_and_resumed(tmp_path: Path, pipe: Feed) -> None:
    out = tmp_path / "out.jsonl"
    assert _run(pipe(*LINES), out, FakeDriver(die_after=10)) is None
    before = len(_sampled(out))
    driver = FakeDriver()
    summary = _run(pipe(*LINES), out, driver)
    assert summary is not None
    assert (driver.total, len(driver.asked)) == (None, 40 - before)
    assert (summary.requests, summary.succeeded, summary.resumed, summary.left) == (40, 40, before, 0)
    assert _sampled(out) == sorted(f"p{line}" for line in range(40))


def test_bad_lines_and_duplicates_of_a_stream_are_recorded(tmp_path: Path, pipe: Feed) -> None:
    out = tmp_path / "out.jsonl"
    summary = _run(pipe(LINES[0], "{", LINES[1], LINES[0]), out)
    assert summary is not None
    assert (summary.exit_code, summary.requests, summary.succeeded, summary.failed) == (3, 4, 2, 2)
    errors = records(tmp_path / "out.jsonl.errors.jsonl")
    assert [(error["line"], error["cause"]) for error in errors] == [(2, "bad_input"), (4, "bad_input")]
    assert "the id 'p0' is already used by line 1" in errors[1]["message"]
    again = _run(pipe(LINES[0], "{", LINES[1], LINES[0]), out)
    assert again is not None
    assert again.failed == 2


def test_a_changed_stream_is_refused(tmp_path: Path, pipe: Feed) -> None:
    out = tmp_path / "out.jsonl"
    assert _run(pipe(*LINES), out, FakeDriver(die_after=10)) is None
    with pytest.raises(InputError, match="line 3 of the input changed"):
        _run(pipe(*LINES[:2], LINES[2].replace("say", "sing"), *LINES[3:]), out)


def test_strict_stops_a_stream_at_its_first_fault(tmp_path: Path, pipe: Feed) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(InputError, match="pipe:3: is not JSON"):
        _run(pipe(*LINES[:2], "{", *LINES[2:]), out, strict=True)
    assert _sampled(out) == ["p0", "p1"]


@pytest.mark.parametrize(
    ("lines", "words"), [((), "is empty"), (("", " "), "is empty"), (("{x", "[]"), "2 lines cannot be used")]
)
def test_a_stream_without_requests_is_refused(tmp_path: Path, pipe: Feed, lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _run(pipe(*lines), tmp_path / "out.jsonl")
    kept = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert ("out.jsonl.errors.jsonl" in kept) is ("{x" in lines)
    assert "out.jsonl" not in kept
    assert kept or "{" not in lines
