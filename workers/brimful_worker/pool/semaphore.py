"""Celery's pool semaphore, kept right while the pool grows and shrinks and the broker's connection is lost.

Private parts of kombu 5.7.0:
    kombu.asynchronous.semaphore.LaxBoundedSemaphore: initial_value, release, value
"""

from __future__ import annotations

from typing import Any


class PoolSemaphore:
    """Main thread only. A release starts the next waiting task, so nothing is released after :meth:`close`."""

    def __init__(self, semaphore: Any, size: int) -> None:
        """``semaphore`` is kombu's LaxBoundedSemaphore."""
        self._semaphore = semaphore
        self._size = size
        self._excess = 0
        """Tasks that run beyond a reduced size."""
        self._closed = False
        self._left: set[int] = set()
        """Tasks that have left their places and have not ended."""

    def leave(self, task: int) -> bool:
        """The task's body has ended, and the next task may begin before its result is stored.

        Returns False, and frees nothing, while as many tasks as there are places are in that state: Redis may take long
        to store results.
        """
        if len(self._left) >= self._size:
            return False
        self._left.add(task)
        self._release()
        return True

    def release(self, task: int) -> None:
        """The task has ended."""
        if task in self._left:
            self._left.remove(task)
        else:
            self._release()

    def _release(self) -> None:
        if self._excess:
            self._excess -= 1
        elif not self._closed:
            self._semaphore.release()

    def close(self) -> None:
        """Start no waiting task any more."""
        self._closed = True

    def resize(self, size: int) -> None:
        if size > self._size:
            self.grow(size - self._size)
        else:
            self.shrink(self._size - size)

    def grow(self, n: int) -> None:
        self._size += n
        kept = min(n, self._excess)
        self._excess -= kept
        self._semaphore.initial_value = self._size
        for _ in range(n - kept):
            self._semaphore.release()

    def shrink(self, n: int) -> None:
        self._size -= n
        free = min(n, self._semaphore.value)
        self._excess += n - free
        self._semaphore.value -= free
        self._semaphore.initial_value = self._size

    def resync(self, running: int) -> None:
        """Celery has cleared the semaphore while ``running`` tasks go on, with those that have left their places."""
        running -= len(self._left)
        self._semaphore.value = max(0, self._size - running)
        self._excess = max(0, running - self._size)
