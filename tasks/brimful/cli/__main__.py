"""``python -m brimful.cli``. Alone, since Python runs a package by this file."""

from brimful.cli import main

main()
