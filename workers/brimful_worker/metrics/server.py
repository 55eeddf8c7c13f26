"""The HTTP server of a worker's metrics: ``/metrics`` for Prometheus, ``/healthz`` for container health checks."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry


def listen(
    port: int, address: str, registry: CollectorRegistry, health: Callable[[], str], token: str | None = None
) -> WSGIServer:
    """Serve on a daemon thread. ``health()`` returns what is wrong, or "". ``token`` is asked for by ``/metrics``.

    Raises OSError if it cannot listen.
    """
    from prometheus_client import make_wsgi_app

    metrics_page = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/healthz":
            trouble = health()
            status = "503 Service Unavailable" if trouble else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{trouble or 'ok'}\n".encode()]
        given = environ.get("HTTP_AUTHORIZATION", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
            return [b"the metrics ask for BRIMFUL_METRICS_TOKEN\n"]
        return cast("Iterable[bytes]", metrics_page(environ, start_response))

    server = make_server(address, port, app, _ServerV6 if ":" in address else _Server, _QuietHandler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks DNS for this machine's name, which may take seconds
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
