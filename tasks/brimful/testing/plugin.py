"""The pytest fixture. ``brimful.testing`` does not import it, and so does not need pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brimful.testing.backend import Backend


@pytest.fixture
def brimful_backend() -> Iterator[Backend]:
    """A :class:`Backend` that answers every request of the test; set its ``answer``, or call ``use_gateway``."""
    with Backend() as backend:
        yield backend
