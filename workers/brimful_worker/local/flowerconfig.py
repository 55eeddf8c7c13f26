"""Alias of :mod:`brimful_worker.local.flower.config` under its first name. Alone, since deployments have copied an
``ops/flower/flowerconfig.py`` that imports it."""

from brimful_worker.local.flower.config import *  # noqa: F403
