"""Alias of :mod:`brimful_worker.local.server.keeper` under its first name, for programs that run while the code is
replaced."""

import sys

from brimful_worker.local.server.keeper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
