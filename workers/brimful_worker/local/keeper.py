"""Alias of :mod:`brimful_worker.local.server.keeper` under its first name. Alone, since a program that runs while the
code is replaced starts the keeper by this name."""

import sys

from brimful_worker.local.server.keeper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
