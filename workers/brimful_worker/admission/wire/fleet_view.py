"""What this process last read of the fleet, which it reports to a Redis server that has lost its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from brimful_worker.admission.policy import Rules, WindowUse
from brimful_worker.admission.wire.redis_clock import RedisClock


class FleetView:
    """Failure mode: before the first reply it knows nothing and reports nothing."""

    def __init__(self) -> None:
        self.members: tuple[int, list[str]] = 0, []
        """Revision and ids of the fleet's processes; each command confirms the revision."""
        self.overrides: dict[str, int] | None = None
        """The limits that the operator set."""
        self._alive, self._used, self._used_at, self._spent = 0, 0, 0.0, 0
        self._tokens_used = 0
        self._lag_most = 0
        """Milliseconds by which the starts of the fleet's farthest process count longer."""
        self._learners: Mapping[str, Any] = {}
        """What the fleet has learnt of its limits, as the script wrote it."""
        self._learners_as_of, self._learners_at = 0, 0.0
        """When that was so, on Redis's clock and on ``boot_time()``."""

    def learn(self, reply: Mapping[str, Any], clock: RedisClock) -> None:
        if "alive" in reply:  # not during a rebuild: what was known before it is worth more
            self._alive, self._used = reply["alive"], reply["used"]
            self._used_at = clock.not_after(reply["now"])
            self._learn_limits(reply.get("learners") or {}, reply["now"], self._used_at)
        self._tokens_used = reply.get("tokens_used", 0)
        self._spent = reply.get("spent", self._spent)
        self._lag_most = max(self._lag_most, reply.get("lag_most", 0))

    def learn_pushed_limits(self, push: Mapping[str, Any], clock: RedisClock) -> None:
        """From a push to all processes, which also reaches an idle one."""
        if "learners" in push:
            self._learn_limits(push["learners"], push["as_of"], clock.not_after(push["as_of"]))

    def _learn_limits(self, learners: Mapping[str, Any], as_of: int, at: float) -> None:
        if at >= self._learners_at:
            self._learners, self._learners_as_of, self._learners_at = learners, as_of, at

    def learn_members(self, told: Mapping[str, Any]) -> bool:
        """From a reply or a push. Returns whether there is a newer list to confirm."""
        self._lag_most = max(self._lag_most, told.get("lag_most", 0))
        revision, ids = told.get("members") or self.members
        if newer := revision > self.members[0]:
            self.members = revision, ids
        return newer

    def window(self, rules: Rules) -> WindowUse:
        """``rules``: in force."""
        length_s = rules.window_s + rules.guard_s
        return WindowUse(rules.starts or 0, self._used, rules.tokens or 0, self._tokens_used, length_s)

    def new_epoch(self) -> None:
        """Revisions are an epoch's."""
        self.members = 0, self.members[1]

    def join_fields(self, now: float) -> dict[str, Any]:
        """Fields of ``join``."""
        fields: dict[str, Any] = {}
        if self._alive:
            age_ms = int((now - self._used_at) * 1000) - 2  # rounding must not put a start after the count that saw it
            fields |= {"alive": self._alive, "used": self._used, "used_age_ms": max(0, age_ms)}
            fields["members"] = self.members[1]
            ago_ms = math.ceil((now - self._learners_at) * 1000)
            fields["learners"] = self._learners_as_of, ago_ms, self._learners
        known = {"overrides": self.overrides, "spent": self._spent, "lag_most": self._lag_most}
        return fields | {name: value for name, value in known.items() if value}
