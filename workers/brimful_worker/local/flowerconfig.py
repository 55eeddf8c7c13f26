"""Alias of :mod:`brimful_worker.local.flower.config` under its name in version 0.1.0: deployments have copied an
``ops/flower/flowerconfig.py`` that imports it."""

from brimful_worker.local.flower.config import *  # noqa: F403
