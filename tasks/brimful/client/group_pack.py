"""Decides whether the samples of a group share a request. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from brimful.client.group import GroupOptions
from brimful.profile import Profile
from brimful.request import Request

_ENOUGH, _KEPT = 3, 64
"""Requests of either kind that must have ended before their times are compared, and how many are remembered."""


class GroupPacking:
    """Decides for the groups of one run, by the times that their requests have taken."""

    def __init__(self, groups: int, options: GroupOptions) -> None:
        self._groups = groups
        self._options = options
        self._seconds = {size: deque[float](maxlen=_KEPT) for size in (1, options.n)}
        """The last times of requests with one sample, and of those with n."""

    def note(self, samples: int, seconds: float) -> None:
        """A request for so many samples took so long at the provider."""
        if samples in self._seconds:
            self._seconds[samples].append(seconds)

    def together(self, index: int, request: Request, profile: Profile) -> bool:
        """Whether the samples of the group at ``index``, from 0, go in one request. ``request`` is that of one sample.

        Never with over-sampling, which stops the requests of single samples when a group is full.
        """
        n, pack = self._options.n, self._options.pack
        if n == 1 or pack != "auto" or self._options.oversample:
            return pack == "group" and n > 1
        alone, together = self._seconds[1], self._seconds[n]
        if profile.max_tokens_required and request.fields.get("max_tokens") is None:
            return False
        if self._groups * n <= profile.slots or index == 0:
            return False  # all fit at once; and the first group shows how long one sample takes
        if min(len(alone), len(together)) < _ENOUGH:
            return True
        return _time_s(self._groups, together, profile) <= _time_s(self._groups * n, alone, profile)


def _time_s(requests: int, seconds: Iterable[float], profile: Profile) -> float:
    """About how long so many requests take, by what slots and starts allow."""
    by_slots = math.ceil(requests / profile.slots) * median(seconds)
    by_starts = requests * profile.window_s / profile.starts if profile.starts else 0.0
    return max(by_slots, by_starts)
