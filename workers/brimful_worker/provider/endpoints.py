"""The provider's URLs, from whatever base URL people set. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from brimful.names import Mode

_PATHS = {
    Mode.COMPLETION: "/completions",
    Mode.CHAT: "/chat/completions",
    Mode.JOB: "/completion-jobs",
}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """``base`` has no trailing slash; ``query`` is what the base URL carried after a ``?`` (``?api-version=…``)."""

    base: str
    query: str = ""

    @classmethod
    def of(cls, api_base: str) -> Endpoints:
        """``https://host``, ``https://host/``, ``https://host/v1/`` and ``https://host/v1/chat/completions`` are the
        same: a base without a path gets ``/v1``, one with a path keeps it, and an endpoint's own path is taken off."""
        parts = urlsplit(api_base.strip())
        path = parts.path.rstrip("/")
        for endpoint in sorted(_PATHS.values(), key=len, reverse=True):
            if path.endswith(endpoint):
                path = path.removesuffix(endpoint)
                break
        host = parts.netloc.rpartition("@")[2]  # a user and password in the URL would fight with the key
        base = urlunsplit((parts.scheme, host, path.rstrip("/") or "/v1", "", ""))
        return cls(base, f"?{parts.query}" if parts.query else "")

    def submit(self, mode: Mode) -> str:
        """Where requests of a mode are POSTed."""
        return f"{self.base}{_PATHS[mode]}{self.query}"

    def job(self, job_id: str, verb: str = "") -> str:
        """A Job's own URL; ``verb`` is ``result`` or ``cancel``."""
        tail = f"/{verb}" if verb else ""
        return f"{self.base}{_PATHS[Mode.JOB]}/{quote(job_id, safe='')}{tail}{self.query}"
