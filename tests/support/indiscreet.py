"""A provider that echoes the key and the prompt in its errors."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class IndiscreetProvider:
    """Runs on a thread of the test's process. The first word of the prompt selects the answer:

    ``ok`` a completion · ``slow`` one after :attr:`release` · ``html`` a 502 page first, then a completion ·
    ``junk`` an error under 200 first, then a completion · ``bad`` 400 · ``refused`` 401.
    """

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: Counter[str] = Counter()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = provider.answer(body, self.headers["Authorization"])
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if raw[:1] == b"{" else "text/html")
                self.send_header("Content-Length", str(len(raw)))
                self.send_header("X-Debug-Echo", self.headers["Authorization"])
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def answer(self, body: dict[str, Any], key: str) -> tuple[int, Any]:
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        word = prompt.split()[0]
        self.asked[prompt] += 1
        echo = {"error": {"message": f"{key} asked {prompt!r}", "code": word, "param": prompt}}
        if word == "refused":
            return 401, echo
        if word == "bad":
            return 400, echo
        if word == "html" and self.asked[prompt] == 1:
            return 502, f"<html><title>{key}</title>{prompt}</html>".encode()
        if word == "junk" and self.asked[prompt] == 1:
            return 200, echo
        if word == "slow":
            self.release.wait(60)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": " yes"}} if "messages" in body else {"text": " yes"}
        return 200, {"id": "c", "choices": [choice], "usage": {"prompt_tokens": 1, "total_tokens": 2}}

    def __enter__(self) -> IndiscreetProvider:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
