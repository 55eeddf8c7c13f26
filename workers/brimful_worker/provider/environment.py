"""Process environment of the provider's connections: proxies, certificate authorities, the open-file limit."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import ssl
import urllib.request
from urllib.parse import SplitResult, urlsplit

from brimful.errors import SettingError

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PORTS = {"http": 80, "https": 443}
_OTHER_OPEN_FILES = 256  # Redis, logs, Celery's pipes, libraries


def proxy_for(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY (either case) name for a URL.

    aiohttp's own ``trust_env`` is not used: it looks the proxy up in a thread for each request, and lets a ``.netrc``
    entry of the host replace the Authorization header. Raises SettingError for an unsupported proxy.
    """
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or not parts.hostname or _needs_no_proxy(parts, proxies.get("no", "")):
        return None
    scheme, slashes, address = proxy.partition("://")
    if not slashes:
        return f"http://{proxy}"
    if scheme.lower() not in ("http", "https"):
        kind = f"a {scheme}://" if scheme.isalnum() else "this kind of"  # else it may be a part of a password
        raise SettingError(f"{parts.scheme.upper()}_PROXY: {kind} proxy is not supported, only http:// ones")
    return f"{scheme.lower()}://{address}"


def _needs_no_proxy(url: SplitResult, no_proxy: str) -> bool:
    """Entries of NO_PROXY: ``*``, a domain (``.example`` or ``example``), an address, a network (CIDR); the first two
    with a port at will. IPv6 addresses with or without brackets: urllib knows neither those nor networks."""
    host = (url.hostname or "").rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for entry in no_proxy.lower().split(","):
        name, _, port = entry.strip().rpartition(":") if entry.count(":") == 1 or "]:" in entry else (entry, "", "")
        name = name.strip().removeprefix("*.").strip("[].")
        if not name or (port and port != str(url.port or _PORTS.get(url.scheme))):
            continue
        if name == "*" or f".{host}".endswith(f".{name}"):
            return True
        with contextlib.suppress(ValueError):
            if address is not None and address in ipaddress.ip_network(name, strict=False):
                return True
    return bool(urllib.request.proxy_bypass(url.netloc.rpartition("@")[2]))


def tls_context() -> ssl.SSLContext | bool:
    """A context with the authorities of SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, the first that is set.

    True, the system's authorities, if none is. Raises SettingError for a file that is missing or has no certificates.
    """
    for name in CA_VARIABLES:
        if not (value := os.environ.get(name)):
            continue
        try:
            if os.path.isdir(value):
                return ssl.create_default_context(capath=value)
            return ssl.create_default_context(cafile=value)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"{name}: cannot read certificates from {value} ({error})") from None
    return True


def raise_open_file_limit(requests: int) -> int | None:
    """Raise this process's soft limit on open files to its hard limit. Returns the new limit, None if unlimited.

    Logs a warning with the way out if it is too low for ``requests`` concurrent connections.
    """
    if resource is None:
        return None
    needed = requests + _OTHER_OPEN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, needed):  # macOS refuses its own hard limit
        if soft not in (hard, resource.RLIM_INFINITY) and not 0 <= wanted <= soft:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < needed:
        log.warning(
            "this process may open %d files, but %d concurrent requests need about %d: raise the limit (ulimit -n, "
            "LimitNOFILE=, --ulimit nofile=) or run more workers with fewer requests each",
            soft,
            requests,
            needed,
        )
    return soft
