"""``--budget-tokens``: a run asks only for what still fits, counting what it asked for and has not got at its most."""

from __future__ import annotations

from brimful.request import Request


class Budget:
    """Tokens of the whole run, all tries. ``used`` is what the provider counted; the rest is held until it ends."""

    def __init__(self, tokens: int | None, used: int = 0) -> None:
        self.tokens = tokens
        self.used = used
        self.reached = False
        self._held: dict[int, int] = {}
        self._sum = 0

    def take(self, line: int, request: Request, rollouts: int) -> bool:
        """Hold what a line may use. False when that does not fit beside what is held and used."""
        if self.tokens is None:
            return True
        tokens = -(-request.hold * rollouts // request.choices)
        if self.used + self._sum + tokens > self.tokens:
            return False
        self._held[line] = tokens
        self._sum += tokens
        return True

    def free(self, line: int) -> None:
        """All of a line has ended."""
        self._sum -= self._held.pop(line, 0)

    @property
    def holding(self) -> bool:
        return bool(self._held)
