"""Atomic replacement of a file: written beside it, synced to disk, then renamed over it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from brimful.errors import FleetError


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces ``path`` when the block ends, and is removed when the block raises.

    A crash or a power loss leaves the old file or the new one, never a part of it. An existing file keeps its
    permissions, and a symbolic link stays a link. Raises FleetError naming ``path`` when it cannot be written.
    """
    target = Path(os.path.realpath(path))
    new = target.with_name(target.name + ".new")
    try:
        try:
            with new.open("wb", buffering=1 << 20) as file:
                with contextlib.suppress(OSError):
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, target)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
    except OSError as error:
        raise FleetError(f"cannot write {path}: {error.strerror or error}; the old file is unchanged") from None
    sync_directory(target.parent)


def sync_directory(folder: Path) -> None:
    """Make the names in a directory durable. Some file systems cannot sync one; they are left alone."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
