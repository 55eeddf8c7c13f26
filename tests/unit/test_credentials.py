"""What of a provider's URL may be shown."""

from __future__ import annotations

import pytest

from brimful.credentials import query_secrets, shown_url


@pytest.mark.parametrize(
    ("url", "shown", "secrets"),
    [
        ("https://host/v1", "https://host/v1", {}),
        ("https://host/v1?api-version=2024-10-21", "https://host/v1?api-version=2024-10-21", {}),
        ("https://host/v1?key=sk%2D1", "https://host/v1?key=…", {"sk%2D1": "key", "sk-1": "key"}),
        ("https://host/v1?code=a+b%3D", "https://host/v1?code=…", {"a+b%3D": "code", "a+b=": "code", "a b=": "code"}),
        ("https://host/v1?api-version=2&code=a&sig=b#end", "https://host/v1?api-version=2&code=…&sig=…#end", None),
        ("https://host/v1?api-version-key=a", "https://host/v1?api-version-key=…", {"a": "api-version-key"}),
        ("https://host/v1?api-version", "https://host/v1?api-version", {}),
        ("https://host/v1?api-version&sk-1", "https://host/v1?api-version&…", {"sk-1": "query"}),
        ("https://host/v1?sk%2D1", "https://host/v1?…", {"sk%2D1": "query", "sk-1": "query"}),
        ("https://host/v1?a=&=b&c&#end", "https://host/v1?a=&=…&…&#end", {"b": "", "c": "query"}),
        ("https://user:pass@host/v1?key=a@b", "…@b", None),
        ("https://user:pass@host/v1?key=a", "…@host/v1?key=…", {"a": "key"}),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str, secrets: dict[str, str] | None) -> None:
    assert shown_url(url) == shown
    if secrets is not None:
        assert query_secrets(url) == secrets
