"""A gateway with a thread per connection, which counts a request as active until its answer is flushed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ThreadedGateway(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, latency_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.latency_s = latency_s
        self.lock = threading.Lock()
        self.active = self.peak = 0
        self.seen: list[tuple[float, float]] = []
        """For each request, time.monotonic() when it arrived and just before its answer was written."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def peak_with(self, later_s: float) -> int:
        """The most concurrent requests, if each counts as active until ``later_s`` after its answer was written."""
        edges = [(arrived, 1) for arrived, _ in self.seen] + [(written + later_s, -1) for _, written in self.seen]
        most = active = 0
        for _, change in sorted(edges):
            active += change
            most = max(most, active)
        return most


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ThreadedGateway

    def do_POST(self) -> None:
        arrived = time.monotonic()
        server = self.server
        with server.lock:
            server.active += 1
            server.peak = max(server.peak, server.active)
        try:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(server.latency_s)
            choice = {"index": 0, "text": " x", "finish_reason": "length", "logprobs": None}
            answer = json.dumps({"id": "c", "object": "text_completion", "model": "m", "choices": [choice]}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
            written = time.monotonic()
            self.wfile.write(head.encode() + answer)
            self.wfile.flush()
        finally:
            with server.lock:
                server.active -= 1
                server.seen.append((arrived, written))

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def threaded_gateway(latency_s: float) -> Iterator[ThreadedGateway]:
    with ThreadedGateway(latency_s) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
