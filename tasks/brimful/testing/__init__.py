"""Tests of a service without Redis and without workers: :class:`Backend`, and its pytest fixture.

Level 8, beside ``client``. Imports ``dispatch``, ``tasks`` and what lies below them.

::

    # conftest.py
    pytest_plugins = ["brimful.testing.plugin"]

    # test_service.py
    def test_it_answers(brimful_backend):
        brimful_backend.answer = lambda request: "Blue."
        assert my_service.ask("What colour is the sky?") == "Blue."
        assert brimful_backend.requests[0].max_tokens == 16
"""

from brimful.testing.answers import Answer
from brimful.testing.backend import Backend

__all__ = ["Answer", "Backend"]
