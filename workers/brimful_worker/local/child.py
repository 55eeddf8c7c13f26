"""Alias of :mod:`brimful_worker.local.processes.child` under its first name.

A supervisor that runs while the code is replaced starts its children by the name it was started with.
"""

import sys

from brimful_worker.local.processes.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
