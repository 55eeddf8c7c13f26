"""A few words of Redis's protocol on a plain socket.

The keeper must be up in milliseconds and stay small: importing redis-py would cost more than starting the server.
"""

from __future__ import annotations

import socket
from types import TracebackType


class RespError(Exception):
    """The server answered with an error; ``str()`` is its text, as in ``LOADING …``."""


class Resp:
    """One connection to 127.0.0.1. Raises OSError where there is no server, RespError where it refuses."""

    def __init__(self, port: int, password: str | None, timeout: float = 1.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._file = self._socket.makefile("rb")
        try:
            if password:
                self.call("AUTH", password)
        except BaseException:
            self.close()
            raise

    def call(self, *words: str | int) -> object:
        """One command, one reply: str, int, None, or a list of those."""
        parts = [str(word).encode() for word in words]
        frame = [b"*%d\r\n" % len(parts)]
        for part in parts:
            frame.append(b"$%d\r\n%b\r\n" % (len(part), part))
        self._socket.sendall(b"".join(frame))
        return self._reply()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Resp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reply(self) -> object:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RespError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            if size < 0:
                return None
            return self._file.read(size + 2)[:-2].decode("utf-8", "replace")
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        raise ConnectionError(f"not Redis's protocol: {line[:40]!r}")
