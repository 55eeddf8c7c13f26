"""A file is replaced as a whole, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from brimful.errors import FleetError
from brimful.runtime.atomic import atomic_write


def _replace(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _replace(path, b"one")
    path.chmod(0o600)
    _replace(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "file")
    _replace(link, b"data")
    assert link.is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"data"


def test_the_content_is_synced_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def noted_replace(old: Path, new: Path) -> None:
        calls.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    _replace(tmp_path / "file", b"data")
    assert calls == ["sync file.new", "rename", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(fd: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((FleetError, KeyboardInterrupt)) as caught:
        _replace(path, b"new")
    if isinstance(error, OSError):
        assert str(caught.value).startswith(f"cannot write {path}: No space left on device")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"cannot write .*nowhere/file: No such file or directory"):
        _replace(tmp_path / "nowhere" / "file", b"data")
