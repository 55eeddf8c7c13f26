"""Alias of :mod:`brimful_worker.local.server.keeper` under its name in version 0.1.0. A program of that version,
running while the code is replaced, starts the keeper by it."""

import sys

from brimful_worker.local.server.keeper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
