"""Alias of :mod:`brimful_worker.local.processes.child` under its name in version 0.1.0. A supervisor of that version,
running while the code is replaced, starts its children by it."""

import sys

from brimful_worker.local.processes.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
