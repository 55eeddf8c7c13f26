"""The plain Celery app that tasks.py measures beside brimful: Celery's defaults, one task, one request to the provider.

The request costs as little as plain Celery can make it: http.client on connections that stay open. There are no limits,
no retries and no late acknowledgements.
"""

from __future__ import annotations

import http.client
import json
import os
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

app = Celery("plain", broker=os.environ["PLAIN_REDIS"], backend=os.environ["PLAIN_REDIS"])
app.conf.task_default_queue = "plain"

_URL = urlsplit(os.environ["PLAIN_API_BASE"])
_HEADERS = {"Authorization": "Bearer sk-bench", "Content-Type": "application/json"}
_connections: deque[http.client.HTTPConnection] = deque()


@app.task(name="plain.sample")  # type: ignore[untyped-decorator]
def sample(prompt: str, max_tokens: int) -> Any:
    body = json.dumps({"model": "llama-8b", "prompt": prompt, "max_tokens": max_tokens})
    connection, response = _ask(body)
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}")
    _connections.append(connection)
    return json.loads(answer)


def _ask(body: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    while True:
        kept = bool(_connections)
        connection = _connections.pop() if kept else http.client.HTTPConnection(_URL.hostname or "", _URL.port)
        try:
            connection.request("POST", f"{_URL.path}/completions", body, _HEADERS)
            return connection, connection.getresponse()
        except OSError:
            if not kept:  # the server closes connections that were idle for long
                raise
