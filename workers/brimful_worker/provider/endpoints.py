"""The provider's URLs, derived from any usual form of its base URL. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit, urlunsplit

from brimful.names import Mode

_PATHS = {
    Mode.COMPLETION: "/completions",
    Mode.CHAT: "/chat/completions",
    Mode.JOB: "/completion-jobs",
}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """``base`` has no trailing slash; ``query`` is the base URL's own query (``?api-version=…``) or empty."""

    base: str
    query: str = field(default="", repr=False)

    @classmethod
    def of(cls, api_base: str, default_path: str = "/v1") -> Endpoints:
        """The endpoints below a base URL.

        ``https://host``, ``https://host/``, ``https://host/v1/`` and ``https://host/v1/chat/completions`` are the same:
        a base URL without a path gets ``default_path``, and an endpoint's own path is removed.
        """
        parts = urlsplit(api_base.strip())
        path = parts.path.rstrip("/")
        for endpoint in sorted(_PATHS.values(), key=len, reverse=True):
            if path.endswith(endpoint):
                path = path.removesuffix(endpoint)
                break
        host = parts.netloc.rpartition("@")[2]  # credentials in the URL would conflict with the key
        base = urlunsplit((parts.scheme, host, path.rstrip("/") or default_path, "", ""))
        return cls(base, f"?{parts.query}" if parts.query else "")

    def submit(self, mode: Mode) -> str:
        """The URL to POST a request of this mode to."""
        return f"{self.base}{_PATHS[mode]}{self.query}"

    @property
    def models(self) -> str:
        """The URL of the list of models."""
        return f"{self.base}/models{self.query}"

    def job(self, job_id: str, verb: str = "") -> str:
        """A Job's URL (ACS, "Sample many rollouts"); ``verb`` is ``result``, ``cancel`` or empty for its status."""
        tail = f"/{verb}" if verb else ""
        return f"{self.base}{_PATHS[Mode.JOB]}/{quote(job_id, safe='')}{tail}{self.query}"
