"""How many tasks may run at once: Celery's semaphore, kept right through growing, shrinking and reconnecting."""

from __future__ import annotations

from typing import Any


class Places:
    """Only on the main thread. Releases start the next waiting task, which is why it closes before a shutdown."""

    def __init__(self, semaphore: Any, size: int) -> None:
        """``semaphore`` is kombu's LaxBoundedSemaphore, or None where Celery runs without a hub."""
        self._semaphore = semaphore
        self._size = size
        self._owed = 0  # places that a shrink took while they were in use
        self._closed = False

    def leave(self) -> None:
        """A task has ended."""
        if self._owed:
            self._owed -= 1
        elif self._semaphore is not None and not self._closed:
            self._semaphore.release()

    def close(self) -> None:
        """Whoever waits is not started any more."""
        self._closed = True

    def grow(self, n: int) -> None:
        self._size += n
        forgiven = min(n, self._owed)
        self._owed -= forgiven
        if self._semaphore is not None:
            self._semaphore.initial_value = self._size
            for _ in range(n - forgiven):
                self._semaphore.release()

    def shrink(self, n: int) -> None:
        self._size -= n
        if self._semaphore is not None:
            free = min(n, self._semaphore.value)
            self._owed += n - free
            self._semaphore.value -= free
            self._semaphore.initial_value = self._size

    def recount(self, running: int) -> None:
        """Celery cleared the semaphore; so many tasks run."""
        if self._semaphore is not None:
            self._semaphore.value = max(0, self._size - running)
            self._owed = max(0, running - self._size)
