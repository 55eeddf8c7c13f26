"""``python -m brimful.cli``."""

from brimful.cli import main

main()
