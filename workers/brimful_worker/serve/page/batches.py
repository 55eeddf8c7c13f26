"""The batches that the page shows: all that are not over, and the last that are."""

from __future__ import annotations

from typing import Any

from brimful.names import of_fleet
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.run_files import RunFiles
from brimful_worker.serve.batches.store import Batches

_MOST = 50
_ENDED = 5


class ShownBatches:
    """One process's view of its folder. A batch that is over is read once."""

    def __init__(self, batches: Batches, fleet: str) -> None:
        self._batches = batches
        self._fleet = fleet
        self._over: dict[str, Batch] = {}
        self._runs: dict[str, str] = {}
        """Batch → its run, which has no files any more once the batch is over."""

    def read(self) -> list[dict[str, Any]]:
        """The newest first, those that are not over before others. Blocks; raises OSError or FleetError.

        ``requests``, ``completed`` and ``failed`` are numbers of lines. ``run`` is the batch's run, by the name that
        it has in the page's figures; None before it has begun, and if it was over when this process started.
        """
        ids = self._batches.ids()
        self._over = {id: self._over[id] for id in ids if id in self._over}
        self._runs = {id: self._runs[id] for id in ids if id in self._runs}
        under_way = []
        for batch in map(self._batches.load, (id for id in ids if id not in self._over)):
            if batch is not None and batch.over:
                self._over[batch.id] = batch
            elif batch is not None:
                under_way.append(batch)
        ended = sorted(self._over.values(), key=_created, reverse=True)[:_ENDED]
        return [self._shown(batch) for batch in [*sorted(under_way, key=_created, reverse=True)[:_MOST], *ended]]

    def _shown(self, batch: Batch) -> dict[str, Any]:
        if batch.id not in self._runs and (run := RunFiles(self._batches.of_batch(batch.id)).run_id()) is not None:
            self._runs[batch.id] = of_fleet(self._fleet, run)
        return {
            "id": batch.id,
            "caller": batch.caller,
            "run": self._runs.get(batch.id),
            "status": batch.document()["status"],
            "created": batch.created,
            "requests": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        }


def _created(batch: Batch) -> float:
    return batch.created
