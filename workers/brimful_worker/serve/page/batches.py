"""The batches that the page shows: all that are not over, and the last that are."""

from __future__ import annotations

from typing import Any

from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.store import Batches

_MOST = 50
_ENDED = 5


class ShownBatches:
    """One process's view of its folder. A batch that is over is read once."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._over: dict[str, Batch] = {}

    def read(self) -> list[dict[str, Any]]:
        """The newest first, those that are not over before others. Blocks; raises OSError or FleetError.

        ``requests``, ``completed`` and ``failed`` are numbers of lines.
        """
        ids = self._batches.ids()
        self._over = {id: self._over[id] for id in ids if id in self._over}
        under_way = []
        for batch in map(self._batches.load, (id for id in ids if id not in self._over)):
            if batch is not None and batch.over:
                self._over[batch.id] = batch
            elif batch is not None:
                under_way.append(batch)
        ended = sorted(self._over.values(), key=_created, reverse=True)[:_ENDED]
        return [_shown(batch) for batch in [*sorted(under_way, key=_created, reverse=True)[:_MOST], *ended]]


def _created(batch: Batch) -> float:
    return batch.created


def _shown(batch: Batch) -> dict[str, Any]:
    return {
        "id": batch.id,
        "caller": batch.caller,
        "status": batch.document()["status"],
        "created": batch.created,
        "requests": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
    }
