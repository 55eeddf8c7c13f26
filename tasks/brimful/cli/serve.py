"""``brimful serve``: the front door, an OpenAI-compatible HTTP server within the key's limits."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from brimful.config import Settings
from brimful.runtime.extras import worker_module


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Serve OpenAI's API until SIGTERM or Ctrl-C. It prints its base URL as the only line on stdout.

    It needs BRIMFUL_REDIS_URL, the API key and the provider's URL, like a worker, and keeps within the key's limits
    together with all workers. On SIGTERM or Ctrl-C the requests on the wire are answered; a second one abandons them.
    """
    server = worker_module("serve.server", "the front door")
    server.serve(Settings.load(), host=host, port=port, ready=_describe)


def _describe(url: str) -> None:
    print(url, flush=True)
    print(
        f"The front door listens. In another terminal:\n"
        f"  export OPENAI_BASE_URL={url} OPENAI_API_KEY=any\n"
        f"Any OpenAI client then samples within the key's limits. Ctrl-C stops it.",
        file=sys.stderr,
        flush=True,
    )
