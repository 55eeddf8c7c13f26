"""A provider whose answers take all the memory or time there is, in a process of its own.

The prompt says which: a key of ``BODIES`` or ``STREAMS``. Any other prompt is answered properly. Run as
``python hostile.py``; it prints its URL.
"""

from __future__ import annotations

import bz2
import json
import socketserver
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MB = 2**20
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def _gzip_bomb(wbits: int) -> bytes:
    """512 MB of JSON with white space, in half a megabyte, and no end: nobody may read so far."""
    packer = zlib.compressobj(9, wbits=wbits)
    start = packer.compress(b'{"choices": [') + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * MB) + packer.flush(zlib.Z_FULL_FLUSH)  # it refers to nothing before it
    return start + block * 512


BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    # prompt: (content encoding, the body)
    "gzip bomb": ("gzip", lambda: _gzip_bomb(31)),
    "deflate bomb": ("deflate", lambda: _gzip_bomb(15)),
    "gzip of members": ("gzip", lambda: zlib.compress(b"", wbits=31) * 20_000),
    "br": ("br", lambda: b"\x8b\x02\x80" * MB),
    "zstd": ("zstd", lambda: b"\x28\xb5\x2f\xfd" * MB),
    "bzip2 bomb": ("bzip2", lambda: bz2.compress(b" " * MB) * 100),
    "many choices": ("", lambda: b'{"choices": [' + b"[]," * 10_000_000 + b"[]]}"),
    "many objects": ("", lambda: b'{"choices": [' + b"{}," * 10_000_000 + b"{}]}"),
    "many numbers": ("", lambda: b'{"choices": [' + b"1," * 30 * MB + b"1]}"),
    "nested lists": ("", lambda: b'{"choices": [' + (b"[" * 1000 + b"]" * 1000 + b",") * 30_000 + b"[]]}"),
    "nested objects": ("", lambda: b'{"choices": [' + (b'{"a":' * 1000 + b"1" + b"}" * 1000 + b",") * 9000 + b"1]}"),
    "cut": ("", lambda: b'{"choices": [' + b'{"index":1,"text":""},' * 2_800_000),
    "deep": ("", lambda: b"[" * 60 * MB),
    "nested extra": ("", lambda: _completion(b"[" * 900 + b"]" * 900)),
    "nested a little": ("", lambda: _completion(b"[" * 400 + b"]" * 400)),
    "long number": ("", lambda: b'{"choices": [{"index": ' + b"9" * 10_000 + b"}]}"),
    "long index": ("", lambda: b'{"choices": [{"index": "' + b"9" * 10_000 + b'", "text": "x"}]}'),
    "long code": ("", lambda: b'{"error": {"code": "' + b"9" * 60 * MB + b'", "message": "no"}}'),
    "unclosed tags": ("", lambda: b"<" * 60 * MB),
    "unclosed comments": ("", lambda: b"<!--" * 15 * MB),
}


def _completion(extra: bytes) -> bytes:
    return b'{"choices": [{"index": 0, "text": " x", "finish_reason": "length", "more": ' + extra + b"}]}"


@dataclass
class Stream:
    head: bytes
    piece: bytes
    """Sent until the client has enough."""


STREAMS = {
    "2 GB": Stream(_OK + b"Content-Length: 2147483648\r\n\r\n", b" " * MB),
    "endless": Stream(_OK + b"\r\n", b" " * MB),
    "endless chunks": Stream(_OK + b"Transfer-Encoding: chunked\r\n\r\n", (b"40\r\n" + b" " * 64 + b"\r\n") * 10_000),
    "endless error": Stream(_OK.replace(b"200 OK", b"400 Bad Request") + b"\r\n", b"x" * MB),
    "endless header": Stream(_OK + b"X: ", b"x" * MB),
    "endless headers": Stream(_OK, b"X: x\r\n" * 100_000),
    "endless hints": Stream(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 10_000),
    "endless trailers": Stream(_OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: x\r\n" * 100_000),
    "endless chunk extension": Stream(_OK + b"Transfer-Encoding: chunked\r\n\r\n2;", b"x" * MB),
    "endless answers": Stream(b"", (_OK + b"Content-Length: 0\r\n\r\n") * 10_000),
}


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            while self._one():
                pass
        except OSError:
            pass  # the client has had enough

    def _one(self) -> bool:
        request = self.rfile.readline()
        length = 0
        while (line := self.rfile.readline().strip().lower()) not in (b"",):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        if not request:
            return False
        if request.startswith(b"GET /asked"):
            self._answer(json.dumps(self.server.asked).encode())
            return True
        prompt = json.loads(self.rfile.read(length))["prompt"]
        with self.server.lock:
            self.server.asked[prompt] += 1
        if (stream := STREAMS.get(prompt)) is not None:
            self.wfile.write(stream.head)
            while True:
                self.wfile.write(stream.piece)
        encoding, body = BODIES.get(prompt, ("", lambda: _completion(b"1")))
        self._answer(self.server.made(prompt, body), encoding)
        return True

    def _answer(self, body: bytes, encoding: str = "") -> None:
        head = _OK + (f"Content-Encoding: {encoding}\r\n".encode() if encoding else b"")
        self.wfile.write(head + f"Content-Length: {len(body)}\r\n\r\n".encode())
        self.wfile.write(body)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self._last: tuple[str, bytes] = ("", b"")

    def made(self, prompt: str, body: Callable[[], bytes]) -> bytes:
        with self.lock:
            if self._last[0] != prompt:
                self._last = prompt, body()
            return self._last[1]


@contextmanager
def hostile_provider() -> Iterator[str]:
    """Its URL, which ends in ``/v1``; ``/asked`` tells how often each prompt came."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    with _Server() as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
        server.serve_forever()
