"""Alias of :mod:`brimful_worker.local.flower.config` under its first name, for deployments that copied
``ops/flower/flowerconfig.py``."""

from brimful_worker.local.flower.config import *  # noqa: F403
