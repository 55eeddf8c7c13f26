"""What a worker process sets up beside its pool."""

from __future__ import annotations

import gc

from brimful_worker.gc_tuning import tune_gc


def test_the_collector_skips_what_is_loaded_and_looks_rarely_at_the_rest() -> None:
    before, counts = gc.get_threshold(), gc.get_freeze_count()
    try:
        tune_gc()
        assert gc.get_freeze_count() > counts
        assert gc.get_threshold()[0] >= 10_000
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
