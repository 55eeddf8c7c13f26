"""A certificate for tests, and TLS in front of a server that has none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


def certificate_in(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1, and a server's context with it."""
    cert, key = _self_signed(folder, "cert", "key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


def client_certificate_in(folder: Path, server: ssl.SSLContext) -> tuple[Path, Path]:
    """A client's certificate and its key. From now on ``server`` refuses all who do not show this certificate."""
    cert, key = _self_signed(folder, "client", "client-key")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cert)
    return cert, key


def _self_signed(folder: Path, name: str, key_name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{key_name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@contextlib.contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """The port of a TLS server on 127.0.0.1 that forwards each connection to ``port``. The embedded Valkey has no TLS.

    It runs in a thread, so that clients may block.
    """
    ready, ports = threading.Event(), [0]
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(
            lambda reader, writer: _forward(reader, writer, port), "127.0.0.1", 0, ssl=context
        )
        ports[0] = server.sockets[0].getsockname()[1]
        ready.set()
        await over.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.set_exception_handler(lambda *_: None)  # handshakes that clients refuse
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    try:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.transport.abort()
        return
    halves = [asyncio.create_task(_copy(reader, to_server)), asyncio.create_task(_copy(from_server, writer))]
    try:
        await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for half in halves:
            half.cancel()
        for end in (writer, to_server):
            end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
