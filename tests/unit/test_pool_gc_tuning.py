from __future__ import annotations

import gc

from brimful_worker.pool import gc_tuning as garbage


def test_what_is_loaded_is_walked_no_more_and_the_rest_rarely() -> None:
    before, counts = gc.get_threshold(), gc.get_freeze_count()
    try:
        garbage.settle()
        assert gc.get_freeze_count() > counts
        assert gc.get_threshold()[0] >= 10_000
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
