"""Which signals count as a second press of Ctrl-C."""

from __future__ import annotations

from brimful.runtime.interrupt import SAME_PRESS_S, KeyPresses


def test_a_forwarded_copy_of_a_press_is_not_a_second_press() -> None:
    now = 0.0
    presses = KeyPresses(lambda: now)
    assert presses.is_new()
    for _ in range(3):
        now += SAME_PRESS_S / 4
        assert not presses.is_new()
    now = SAME_PRESS_S
    assert presses.is_new()
    now += SAME_PRESS_S / 2
    assert not presses.is_new()
    assert presses.count == 2
