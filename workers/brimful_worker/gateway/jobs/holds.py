"""The key's tokens. A running request holds all that it may use; at its end only what it used is gone."""

from __future__ import annotations


class Budget:
    def __init__(self, total: int | None) -> None:
        """``total`` tokens; None has no end."""
        self.total = total
        self.used = 0
        self.held = 0
        self.peak_held = 0
        self.refused = 0

    @property
    def left(self) -> int | None:
        """Tokens that are neither used nor held."""
        return None if self.total is None else self.total - self.used - self.held

    def hold(self, tokens: int) -> bool:
        """False, holding nothing, where ``tokens`` do not fit what is left."""
        left = self.left
        if left is not None and tokens > left:
            self.refused += 1
            return False
        self.held += tokens
        self.peak_held = max(self.peak_held, self.held)
        return True

    def settle(self, held: int, used: int) -> None:
        """Ends a hold of ``held`` tokens, of which ``used`` were used."""
        self.held -= held
        self.used += used
