"""Flower's settings in a deployment: those of the local fleet. Change or add what you need below the import.

    celery -A brimful flower --conf=ops/flower/flowerconfig.py --address=0.0.0.0 --port=5555

The login is BRIMFUL_FLOWER_USER and BRIMFUL_FLOWER_PASSWORD (or FLOWER_BASIC_AUTH); one is generated and printed if
none is set. ``/metrics`` and ``/healthcheck`` ask for no login.
"""

from brimful_worker.local.flower.config import *  # noqa: F403
