"""The figures of ``brimful status``."""

from __future__ import annotations

from brimful.state.status import _next_start_ms


def test_the_next_start_is_when_the_full_window_has_room() -> None:
    assert _next_start_ms([-5.0, 100.0, 200.0, 300.0], 3) == 100.0
    assert _next_start_ms([100.0, 200.0, 300.0], 2) == 200.0  # the limit was lowered meanwhile
    assert _next_start_ms([100.0], 2) == _next_start_ms([], 0) == 0.0
