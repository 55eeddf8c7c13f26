"""The garbage collector of a worker process, set for thousands of requests in flight.

Python's default looks for cycles after every 700 new objects and walks the whole heap again and again: with a few
thousand requests in flight that was half of a worker's CPU time (measured: 300 µs a request against 150), and each full
walk stops the event loop. What is loaded at the start stays for good, so it is taken out of the walks; and since almost
everything here dies by reference counting, looking rarely loses nothing.
"""

from __future__ import annotations

import atexit
import gc

_YOUNG = 200_000
"""New objects before a look at them, some 40 MB: a thousand requests that end and begin together are no reason yet."""
_MIDDLE, _OLD = 20, 50


def settle() -> None:
    """Call it once, when all that a process keeps is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # Python looks through everything at its exit, which takes a third of a second
