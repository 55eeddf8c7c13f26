"""What a process takes from its surroundings: proxies, certificate authorities, file descriptors."""

from __future__ import annotations

import logging
import os
import ssl
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from brimful.errors import SettingError

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OTHER_DESCRIPTORS = 256  # Redis, logs, Celery's pipes, libraries


def proxy_for(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY (either case) name for a URL.

    Asked once for the one host there is: aiohttp's own ``trust_env`` asks in a thread for each request, and lets a
    ``.netrc`` entry of the host break the Authorization header. Raises SettingError for a proxy that is none.
    """
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    if not parts.hostname or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        scheme = proxy.partition("://")[0]
        raise SettingError(f"{parts.scheme.upper()}_PROXY: a {scheme}:// proxy is not supported, only http:// ones")
    return proxy


def tls_context() -> ssl.SSLContext | bool:
    """True: the system's authorities; else those of SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE.

    Raises SettingError naming the variable when its file is missing or holds no certificate.
    """
    for name in _CA_VARIABLES:
        if not (value := os.environ.get(name)):
            continue
        path = Path(value)
        try:
            if path.is_dir():
                return ssl.create_default_context(capath=value)
            return ssl.create_default_context(cafile=value)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"{name}: {value} holds no certificates that can be read ({error})") from None
    return True


def raise_descriptors(requests: int) -> int | None:
    """Lift this process's soft limit on open files to its hard limit; the limit then, None where there is none.

    Warns where it is too low for ``requests`` connections at once, and says what to do.
    """
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft != hard:
        wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 20)
        for attempt in (wanted, requests + _OTHER_DESCRIPTORS):  # macOS refuses what is above its kernel's own limit
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, attempt), hard))
            except (OSError, ValueError):
                continue
            break
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < requests + _OTHER_DESCRIPTORS:
        log.warning(
            "this process may open %d files, but %d requests at once need about %d: raise the limit (ulimit -n, "
            "LimitNOFILE=, --ulimit nofile=) or run more workers with fewer requests each",
            soft,
            requests,
            requests + _OTHER_DESCRIPTORS,
        )
    return soft
