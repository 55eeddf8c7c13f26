"""The bodies of the provider's answers: how much memory one of them, and all that are being read, may take."""

from __future__ import annotations

from aiohttp import StreamReader

_LARGE = 2**20
"""Bytes from which a body counts. Most answers are far smaller, and cost nothing here."""
_ERROR_BYTES = 2**20
"""Of an answer without a completion: its status and the beginning of its text say all that is used."""
_TOGETHER = 4
_PARSED = 8
"""Times the limit of one body: what all may take while they are read, and what the values of one may when parsed."""


class BodyRefused(ValueError):
    """A body that is not kept; ``str()`` says why."""

    def __init__(self, reason: str, *, complete: bool = False, again: bool = False) -> None:
        super().__init__(reason)
        self.complete = complete
        """It was read to its end."""
        self.again = again
        """Another attempt may succeed. An answer that is too large would be as large again, and is paid for again."""


class Bodies:
    """Reads the bodies of one process's answers, each of at most ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._large_from = min(_LARGE, max_bytes)
        self._held = 0
        """Bytes of the large bodies that are being read."""
        self._large = 0
        """Number of large bodies that are being read."""

    async def read(self, content: StreamReader, *, error: bool) -> bytes | bytearray:
        """The decompressed body; only its beginning if the answer is an ``error``. Raises BodyRefused."""
        first = content.read_nowait() if content.is_eof() else await content.readany()
        if len(first) <= self._large_from and content.at_eof():
            return first
        body, held, chunk = bytearray(), 0, first
        try:
            while chunk:
                body += chunk
                if error and len(body) >= _ERROR_BYTES:
                    break
                if len(body) > self._large_from:
                    self._large += not held
                    self._held += len(body) - held
                    held = len(body)
                    self._check(held)
                chunk = await content.readany()
        finally:
            self._large -= held > 0
            self._held -= held
        if len(body) > self._large_from and memory_when_parsed(body) > _PARSED * self.max_bytes:
            raise BodyRefused(
                f"the answer's JSON would take more than {_PARSED} times BRIMFUL_MAX_ANSWER_MB in memory", complete=True
            )
        return body

    def _check(self, size: int) -> None:
        if size > self.max_bytes:
            raise BodyRefused("the answer is larger than BRIMFUL_MAX_ANSWER_MB allows")
        together = _TOGETHER * self.max_bytes
        if self._held > together and size > together / self._large:  # the small ones are not to blame
            raise BodyRefused(
                f"the answers that this worker reads are together larger than {_TOGETHER} times BRIMFUL_MAX_ANSWER_MB",
                again=True,
            )


def memory_when_parsed(body: bytes | bytearray) -> int:
    """An upper bound of the bytes that the values of a JSON document take in Python, texts aside.

    ``[[],[],…]`` takes 24 times its own size, nested objects more: what is small on the wire may not fit into memory.
    Commas and brackets within texts count too, which is little where texts are ordinary.
    """
    return 64 * body.count(b",") + 90 * body.count(b"[") + 250 * body.count(b"{")
