"""The files of a run: which rollouts are there, torn lines, full disks, exact texts."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path

import pytest

from brimful.errors import FleetError, InputError, UsageError
from brimful.outcome import Outcome, Rollout
from brimful.packing.units import Delivered, Unit
from brimful.request import Request
from brimful.run.output.jsonl import RecordFile, mend
from brimful.run.output.paths import Order
from brimful.run.output.records import rollout_records
from brimful.run.output.sidecar import Sidecar
from brimful.run.prepare import prepare
from support.fake_driver import FakeDriver
from support.runs import PROFILE, identities, options, prompts, records, run, write_lines


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"", b""),
        (b'{"id":1}\n', b'{"id":1}\n'),
        (b'{"id":1}\n{"b', b'{"id":1}\n'),
        (b'{"i', b""),
        (b'{"id":1,"te', b""),
        (b'{"id":1}\n{"id":2}', b'{"id":1}\n{"id":2}\n'),
        (b'{"id":1}\n' + b"\0" * 70_000, b'{"id":1}\n'),
        (b'{"id":1}\n{"id":\0\0\0}\n{"id":3}\n', b'{"id":1}\n'),
        (b"\0" * 70_000, b""),
        (b'{"id":1}\n12', b'{"id":1}\n'),
        (b"not ours", b"not ours"),
        (b"not\0ours\nat all", b"not\0ours\nat all"),
    ],
)
def test_only_the_remains_of_a_crash_are_removed(tmp_path: Path, data: bytes, left: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(data)
    mend(path)
    assert path.read_bytes() == left
    assert mend(path) == 0


def test_records_share_the_usage_of_their_request() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19}
    rollouts = [Rollout(prompt, choice, "x" * (choice + 1), "stop") for prompt in range(2) for choice in range(2)]
    line = Unit(1, "1", Request.parse({"prompt": ["a", "b"], "n": 2, "max_tokens": 8}, PROFILE))
    made = rollout_records(Delivered(1, "1", rollouts, "m", usage, Outcome("r"), 1), line)
    assert [record["usage"]["prompt_tokens"] for record in made] == [5, 0, 5, 0]
    assert sum(record["usage"]["total_tokens"] for record in made) == 19


def test_a_full_disk_leaves_no_empty_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FleetError, match=r"cannot write .*out\.run\.json: No space left on device"):
        Sidecar.new({}).store(tmp_path / "out.run.json")
    assert not list(tmp_path.iterdir())


TEXTS = [
    "plain", "a\nb\r\nc", "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e", 'quotes " \\ \' “”', "\ud800 lone \udfff",
    "🙂👩‍👩‍👧", "\x00\x01\x7f", "", "  ", "ﷺ \u202e rtl", "{\"id\": 1}\n",
]  # fmt: skip


def test_texts_are_kept_exactly_across_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": text or "-"} for text in TEXTS])
    assert run(options(source, out=out), FakeDriver(lambda unit, *_: TEXTS[unit.line - 1], die_after=4)) is None
    summary = run(options(source, out=out), FakeDriver(lambda unit, *_: TEXTS[unit.line - 1]))
    assert summary is not None
    assert {record["line"]: record["text"] for record in records(out)} == dict(enumerate(TEXTS, 1))
    assert len(out.read_bytes().decode().splitlines()) == len(TEXTS)
    assert summary.empty == 3


def test_an_output_truncated_anywhere_is_completed(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 5, n=2)
    run(options(source, out=out))
    whole = out.read_bytes()
    wanted = sorted(identities(out))
    for cut in random.Random(5).sample(range(len(whole)), 60):
        out.write_bytes(whole[:cut])
        summary = run(options(source, out=out))
        assert summary is not None
        # A last line that lacks nothing but its end is whole all the same.
        lines = whole[: cut + 1] if whole[cut : cut + 1] == b"\n" else whole[:cut]
        assert summary.resumed == lines.count(b"\n")
        assert sorted(identities(out)) == wanted


def test_a_full_disk_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 9)
    left, write = 1500, os.write

    def until_full(fd: int, data: bytes) -> int:
        nonlocal left
        if os.path.realpath(f"/proc/self/fd/{fd}") != str(out.resolve()):
            return write(fd, data)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[:left])
        left -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", until_full)
        with pytest.raises(FleetError, match=r"cannot write .*out.jsonl: No space left"):
            run(options(source, out=out))
    assert len(records(out)) == 3
    told = json.loads((tmp_path / "out.jsonl.run.json").read_text())["tries"][-1]["summary"]
    assert (told["rollouts"], told["succeeded"], told["left"], told["exit_code"]) == (3, 3, 6, 1)
    assert run(options(source, out=out)).rollouts == 9  # type: ignore[union-attr]


def test_order_input_sorts_the_output(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 20, n=2)
    run(options(source, out=out, order=Order.INPUT), FakeDriver(reverse=True, die_after=4))
    run(options(source, out=out, order=Order.INPUT), FakeDriver(reverse=True))
    assert identities(out) == [(f"p{line}", 0, choice) for line in range(20) for choice in range(2)]


@pytest.mark.parametrize("text", ['{"hello": "world"}\n', "notes without a line ending"])
def test_a_file_that_is_not_a_run_s_output_is_left_unchanged(tmp_path: Path, text: str) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 4)
    out.write_text(text)
    with pytest.raises(InputError, match=r"out.jsonl:1: is not a record of a run"):
        run(options(source, out=out))
    assert out.read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_two_runs_cannot_write_one_output(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 4)
    prepared = prepare(options(source, out=out), PROFILE)
    with pytest.raises(UsageError, match="another run is writing"):
        prepare(options(source, out=out), PROFILE)
    prepared.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_a_sync_covers_an_earlier_process_and_repeats_only_after_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = _synced_files(monkeypatch)
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"id":1}\n')
    file = RecordFile(path)
    file.sync()
    file.sync()
    assert synced == ["out.jsonl"]
    file.write([{"id": 2}])
    file.sync()
    file.close()
    assert synced == ["out.jsonl"] * 2


def test_only_a_regular_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = _synced_files(monkeypatch)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "missing", Path("/dev/null")):
        RecordFile(path).sync()
    prepared = prepare(options(prompts(tmp_path), out="-"), PROFILE)
    assert prepared.files is None  # nothing to sync: a run does not resume from standard output
    assert synced == []


def test_a_file_that_could_not_be_synced_is_never_reported_as_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = RecordFile(tmp_path / "out.jsonl")
    file.write([{"line": 1}])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(FleetError, match="Input/output error"):
            file.sync()
    for _ in range(2):
        with pytest.raises(FleetError, match="Input/output error"):
            file.sync()
        file.write([{"line": 2}])
    file.close()


def _synced_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    synced: list[str] = []

    def fsync(fd: int) -> None:
        file = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if not file.is_dir():
            synced.append(file.name)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced
