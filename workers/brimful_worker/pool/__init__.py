"""The Celery pool: every task is a coroutine on the process's one event loop.

Level 3. Imports ``broker`` and ``metrics``; imported by ``worker``. Celery loads it by name, as
``brimful_worker.pool:TaskPool``.
"""

from brimful_worker.pool.pool import TaskPool

__all__ = ["TaskPool"]

TaskPool.__module__ = __name__  # the name by which `brimful.celery.require_pool` and Celery know it
