"""Who may use Flower's API and metrics. Runs in Flower's own process.

Patched, as read in Flower 2.2.0: ``flower.api.BaseApiHandler.write_error``, ``flower.views.monitor.Metrics.prepare``.
"""

from __future__ import annotations

import hmac
import os
from typing import Any


def install() -> None:
    """Patch this process's Flower. Idempotent."""
    from flower.api import BaseApiHandler
    from flower.views.monitor import Metrics
    from tornado.web import HTTPError

    if hasattr(BaseApiHandler, "brimful_asks"):
        return
    write = BaseApiHandler.write_error
    token = os.environ.get("BRIMFUL_METRICS_TOKEN")

    def write_error(self: Any, status_code: int, **options: Any) -> None:
        """A browser asks its user for the login only if the answer says how: a page that was opened with the login in
        its URL calls the API without it."""
        if status_code != 401 or not self.application.options.basic_auth:
            write(self, status_code, **options)
            return
        self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.finish("log in first: reload the page")

    def prepare(self: Any) -> None:
        given = self.request.headers.get("Authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPError(401)

    BaseApiHandler.write_error, BaseApiHandler.brimful_asks = write_error, True
    Metrics.prepare = prepare
