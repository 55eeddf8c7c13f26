"""Input files as lines of bytes: plain, gzip or zstd (by their first bytes), standard input, several in a row.

Only ``\\n`` ends a line, with or without a ``\\r`` before it: a JSON string may hold any other line break of Unicode.
Memory holds one line at a time, and at most MAX_LINE bytes of it.
"""

from __future__ import annotations

import gzip
import io
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from brimful.errors import InputError, UsageError

STDIN = "-"
MAX_LINE = 64 * 1024 * 1024
"""Bytes of one line. A longer line is cut there, and the reader refuses it."""
_BUFFER = 256 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"PAR1": "a Parquet file",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"%PDF": "a PDF",
    b"BZh": "a bzip2 file; unpack it, or use .gz or .zst",
    b"\xfd7zXZ": "an xz file; unpack it, or use .gz or .zst",
}
_UNSUPPORTED = {".csv", ".tsv", ".parquet", ".xlsx", ".pdf", ".zip"}


class RawLine(NamedTuple):
    place: int
    """1-based line of its file."""
    data: bytes
    """Without its line ending."""
    overlong: bool
    """Longer than MAX_LINE, and cut there."""


@dataclass(frozen=True, slots=True)
class Source:
    """One input: a path, or ``-`` for standard input."""

    path: str

    @property
    def name(self) -> str:
        """For messages."""
        return "<stdin>" if self.path == STDIN else self.path

    @property
    def suffix(self) -> str:
        """The lower-case suffix that names the format, without ``.gz`` or ``.zst``."""
        suffixes = [suffix.lower() for suffix in Path(self.path).suffixes]
        while suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
            suffixes.pop()
        return suffixes[-1] if suffixes else ""

    @property
    def regular(self) -> bool:
        """A regular file, which can be read twice, as opposed to standard input or a pipe."""
        return self.path != STDIN and Path(self.path).is_file()

    def check(self, forced: bool) -> None:
        """Raises UsageError when this cannot be an input. ``forced``: the user named the format."""
        if self.path == STDIN:
            return
        path = Path(self.path)
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise UsageError(
                    f"{self.path}: is a directory; name the files in it (for instance {self.path}/*.jsonl)"
                )
            if stat.S_ISREG(mode):
                with path.open("rb"):
                    pass
                if path.stat().st_size == 0:
                    raise UsageError(f"{self.path}: is empty; write a request or a prompt on each line")
        except FileNotFoundError:
            raise UsageError(f"{self.path}: no such file; check the name, or use - to read standard input") from None
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if self.suffix in _UNSUPPORTED and not forced:
            raise UsageError(
                f"{self.path}: {self.suffix} files are not supported; convert it to JSONL (an object with a prompt on "
                "each line), or use --input-format text if each line is a prompt"
            )

    def lines(self) -> Iterator[RawLine]:
        """All lines, blank ones too. Raises UsageError, and InputError for a file that is truncated or not readable."""
        place = 0
        with _named_errors(self.name, lambda: place + 1), self._open() as stream:
            while data := stream.readline(MAX_LINE + 1):
                place += 1
                overlong = len(data) > MAX_LINE and not data.endswith(b"\n")
                if overlong:
                    while (rest := stream.readline(_BUFFER)) and not rest.endswith(b"\n"):
                        pass
                if data.endswith(b"\n"):
                    data = data[:-2] if data.endswith(b"\r\n") else data[:-1]
                if place == 1 and data.startswith(b"\xef\xbb\xbf"):
                    data = data[3:]
                yield RawLine(place, data, overlong)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The unpacked bytes."""
        try:
            # Not sys.stdin's own reader: a thread that waits for a line would keep it locked at interpreter exit.
            file = sys.stdin.fileno() if self.path == STDIN else self.path
            raw: Any = open(file, "rb", closefd=self.path != STDIN)  # noqa: SIM115  (closed below)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        with raw:
            head = raw.peek(8)[:8]
            if head.startswith(_GZIP):
                yield io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER)
            elif head.startswith(_ZSTD):
                yield _zstd_reader(raw, self.name)
            elif what := next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None):
                raise InputError(f"{self.name}:1: is {what}; brimful reads JSONL and plain text in UTF-8")
            else:
                yield raw


@contextmanager
def _named_errors(name: str, place: Callable[[], int]) -> Iterator[None]:
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


def _zstd_reader(raw: IO[bytes], name: str) -> IO[bytes]:
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
