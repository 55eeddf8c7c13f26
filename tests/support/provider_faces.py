"""Stand-ins for providers: HTTP servers that demand what the provider demands, and record what they were sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Face:
    """What the provider demands; and, once it runs, its address and the requests that reached it."""

    path: str
    """Of chat completions or completions."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Each of them must be sent with this value."""
    forbidden_headers: tuple[str, ...] = ()
    forbidden_fields: tuple[str, ...] = ()
    root: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The bodies that were accepted."""
    refused: list[str] = field(default_factory=list)

    def fault(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
        if path != self.path:
            return f"no such path: {path}"
        for name, value in self.headers.items():
            if headers.get(name) != value:
                return f"header {name}: {headers.get(name)!r}"
        sent = [name for name in self.forbidden_headers if name in headers]
        sent += [name for name in self.forbidden_fields if name in body]
        return f"not supported: {sent[0]}" if sent else None


@contextmanager
def running(face: Face) -> Iterator[Face]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fault = face.fault(self.path, dict(self.headers), body)
            if fault is None:
                face.asked.append(body)
            else:
                face.refused.append(fault)
            self._answer(
                200 if fault is None else 400, _completion(body) if fault is None else {"error": {"message": fault}}
            )

        def _answer(self, status: int, document: Any) -> None:
            answer = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        face.root = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield face
        finally:
            server.shutdown()
            thread.join()


def _completion(body: Mapping[str, Any]) -> dict[str, Any]:
    chat = "messages" in body
    count = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)
    said: dict[str, Any] = {"message": {"role": "assistant", "content": "yes"}} if chat else {"text": "yes"}
    return {
        "id": "one",
        "model": body["model"],
        "choices": [{"index": index, **said, "finish_reason": "stop"} for index in range(count)],
        "usage": {"prompt_tokens": 4 * count, "completion_tokens": count, "total_tokens": 5 * count},
    }
