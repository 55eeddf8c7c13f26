"""Limits that the fleet has learnt from refusals, as this process uses them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from brimful.limits import describe_learnt
from brimful_worker.admission.local_state import LocalState

log = logging.getLogger(__name__)


class Learnt:
    """Applies the limits in force to the local state. What is learnt is decided in Redis (``lua/parts/learnt.lua``)."""

    def __init__(self, local_state: LocalState) -> None:
        self._local_state = local_state
        self.given = local_state.rules
        """The limits as they are set."""

    def replied(self, reply: Mapping[str, Any]) -> None:
        """A reply brings what the fleet has learnt; nothing, if the limits in force are those that are set."""
        learnt = reply.get("learnt") or {}
        self._local_state.learning = "learnt" in reply
        self._use(learnt)
        for name in reply.get("told") or ():  # this process logs it, for the whole fleet
            given = getattr(self.given, name) or 0
            log.warning("admission: %s", describe_learnt(name, learnt.get(name, 0), given))

    def pushed(self, push: Mapping[str, Any]) -> None:
        """Sent to all processes when it has changed."""
        if "learnt" in push:
            self._use(push["learnt"])

    def _use(self, learnt: Mapping[str, int]) -> None:
        lower: dict[str, Any] = dict(learnt)
        rules = replace(self.given, **lower) if lower else self.given
        if rules != self._local_state.rules:
            self._local_state.apply(rules)
