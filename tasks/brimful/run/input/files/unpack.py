"""Opens an input and unpacks it: plain, gzip or zstd, by its first bytes."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from brimful.errors import InputError, UsageError

STDIN = "-"
_BUFFER = 256 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Unpacked(NamedTuple):
    stream: io.BufferedReader
    packed: bool
    """The file itself is gzip or zstd."""


@contextmanager
def unpacked(path: str, name: str) -> Iterator[Unpacked]:
    """The unpacked bytes of a file, or of standard input (``-``). Raises UsageError when it cannot be opened."""
    try:
        # Not sys.stdin's own reader: a thread that waits for a line would keep it locked at interpreter exit.
        file = sys.stdin.fileno() if path == STDIN else path
        raw: Any = open(file, "rb", closefd=path != STDIN)  # noqa: SIM115  (closed below)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    with raw:
        head = raw.peek(8)[:8]
        if head.startswith(_GZIP):
            yield Unpacked(io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER), True)
        elif head.startswith(_ZSTD):
            yield Unpacked(_zstd_reader(raw, name), True)
        else:
            yield Unpacked(raw, False)


@contextmanager
def named_errors(name: str, place: Callable[[], int]) -> Iterator[None]:
    """Turns errors of reading and unpacking into InputError with the file and the place."""
    try:
        yield
    except EOFError:
        raise InputError(f"{name}:{place()}: the compressed file is truncated; create it again") from None
    except (zlib.error, OSError) as error:  # gzip's own is an OSError
        raise InputError(f"{name}:{place()}: cannot be read: {error}; create the file again") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # by name: the module is optional
            raise
        raise InputError(f"{name}:{place()}: cannot be unpacked: {error}; create the file again") from None


def _zstd_reader(raw: IO[bytes], name: str) -> io.BufferedReader:
    try:
        import zstandard
    except ImportError:
        raise UsageError(
            f"{name}: is zstd-compressed; pip install 'brimful[zstd]' to read it, or unpack it first"
        ) from None
    return io.BufferedReader(_ZstdReader(raw, zstandard.ZstdDecompressor()), _BUFFER)


class _ZstdReader(io.RawIOBase):
    """Reads zstd frames, and raises EOFError for a truncated file, which zstandard's own reader takes for complete."""

    def __init__(self, raw: IO[bytes], decompressor: Any) -> None:
        self._raw = raw
        self._decompressor = decompressor
        self._frame: Any = None
        self._packed = b""
        self._plain = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            self._packed = self._packed or self._raw.read(_BUFFER)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            self._plain = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size
