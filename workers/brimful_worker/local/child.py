"""Alias of :mod:`brimful_worker.local.processes.child` under its first name. Alone, since a supervisor that runs while
the code is replaced starts its children by this name."""

import sys

from brimful_worker.local.processes.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
