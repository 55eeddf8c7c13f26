"""What must not go on in a forked child: connections, event loops and threads of its parent.

gunicorn ``--preload``, multiprocessing and Celery's prefork pool fork after a service may have used its fleet. In the
child every registered object drops what it inherited, and makes its own when it is next used.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    def after_fork(self) -> None:
        """Called in the child, whose only thread is the one that forked. Opens, closes and locks nothing."""


_forkables: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[Any] = []


def register(forkable: Forkable) -> None:
    """Call ``forkable.after_fork()`` in children, for as long as somebody else refers to it."""
    _forkables.add(forkable)


def keep_inherited(*things: Any) -> None:
    """Keep what a child inherited and will not use. Closing or collecting it could change what the parent uses too: a
    TLS session, or the file descriptors that an epoll set watches."""
    _inherited.extend(things)


def _in_child() -> None:
    for forkable in list(_forkables):
        forkable.after_fork()


os.register_at_fork(after_in_child=_in_child)
