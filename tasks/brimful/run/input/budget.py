"""The tokens and the money that a run may use. A line in flight holds the most that it may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import NamedTuple

from brimful.errors import InputError
from brimful.packing.token_ratio import PromptSize, TokenRatio
from brimful.profile import Profile, Tokens
from brimful.request import Request


class _Hold(NamedTuple):
    """What a line in flight may use."""

    size: PromptSize
    """Of its prompts."""
    calls: int
    """Requests that the provider counts the prompts in."""
    asked: int
    """Tokens that it may generate."""
    model: str


class Budget:
    """Limits the tokens and the money of a run, over all its tries.

    Learns from what the provider counts how many tokens prompts have.
    """

    def __init__(
        self, tokens: int | None, used: int = 0, *, money: float | None = None, profile: Profile, batch: bool = False
    ) -> None:
        """``tokens``, ``money``: the most that may be used; None = no limit. ``used``: tokens that the provider has
        counted so far. ``batch``: the workload is batch."""
        self.tokens = tokens
        self.money = money
        self.used = used
        self.spent = 0.0
        self.unmetered = 0
        """Tokens that attempts without the provider's count may have used besides."""
        self.reached = False
        """A line did not fit though no other one held tokens."""
        self._profile = profile
        self._batch = batch
        self._dearest: str | None = None
        """The model whose tokens cost most, of those asked for."""
        self._ratio = TokenRatio()
        self._held: dict[int, _Hold] = {}
        self._sum = (0, 0.0)
        """Tokens and money that all of these may use, by the ratio in its revision ``_revision``."""
        self._revision = 0

    @property
    def limited(self) -> bool:
        return self.tokens is not None or self.money is not None

    def count(self, by_model: Mapping[tuple[str, ...], Tokens]) -> None:
        """What the provider has counted so far, earlier tries included."""
        self.used = sum(tokens.prompt + tokens.completion for tokens in by_model.values())
        if self.money is not None:
            self.spent = self._profile.cost(by_model, batch=self._batch) or 0.0

    def take(self, line: int, request: Request, rollouts: int, calls: int = 1) -> bool:
        """Hold what a line may use. False when it does not fit beside what is held and used.

        ``calls``: requests among which its choices are divided; the provider counts its prompts in each. Raises
        InputError where its model has no price, and money is limited.
        """
        if not self.limited:
            return True
        hold = self._hold(request, rollouts, calls)
        if self._revision != self._ratio.revision:
            self._revision = self._ratio.revision
            self._sum = (0, 0.0)
            for other in self._held.values():
                self._add(self._most(other))
        most = self._most(hold)
        # Until the provider has counted a prompt, a line alone may use more than it probably will.
        fits = self._fits(most) or (not self._held and not self._ratio.known and self._fits(self._likely(hold)))
        if fits:
            self._held[line] = hold
            self._add(most)
        return fits

    def take_more(self, line: int, request: Request, rollouts: int, held: tuple[int, int]) -> bool:
        """Hold ``rollouts`` of a line in a further request, beside those that it has in flight: so many rollouts in so
        many requests. False when that does not fit; the line then holds only what it has in flight."""
        if not self.limited:
            return True
        self.free(line)
        if self.take(line, request, held[0] + rollouts, held[1] + 1):
            return True
        self.keep(line, request, held)
        return False

    def keep(self, line: int, request: Request, held: tuple[int, int]) -> None:
        """Hold of a line only so many rollouts in so many requests: the rest of it is not under way."""
        self.free(line)
        if self.limited and held[0]:
            self._held[line] = hold = self._hold(request, *held)
            self._add(self._most(hold))

    def learn(self, lines: Iterable[int], prompt_tokens: int) -> None:
        """The provider has counted so many tokens in the prompts of a request for these lines."""
        holds = [self._held[line] for line in lines if line in self._held]
        if holds and all(hold.calls == 1 for hold in holds):
            self._ratio.learn(reduce(add, (hold.size for hold in holds)), prompt_tokens)

    def free(self, line: int) -> None:
        if (hold := self._held.pop(line, None)) is not None and self._revision == self._ratio.revision:
            self._add(self._most(hold), -1)

    @property
    def holding(self) -> bool:
        return bool(self._held)

    def _hold(self, request: Request, rollouts: int, calls: int) -> _Hold:
        asked = -(-request.asked * rollouts // request.choices)
        return _Hold(PromptSize.of(request.prompts), calls, asked, str(request.body(self._profile)["model"]))

    def _fits(self, more: tuple[int, float]) -> bool:
        tokens, money = self._sum[0] + more[0], self._sum[1] + more[1]
        if self.tokens is not None and self.used + self.unmetered + tokens > self.tokens:
            return False
        return self.money is None or self.spent + self._unmetered_money() + money <= self.money

    def _unmetered_money(self) -> float:
        """As if the tokens of attempts that nobody counted were generated by the dearest model."""
        if self._dearest is None:
            return 0.0
        return self._profile.cost({(self._dearest,): Tokens(completion=self.unmetered)}, batch=self._batch) or 0.0

    def _add(self, more: tuple[int, float], sign: int = 1) -> None:
        self._sum = (self._sum[0] + sign * more[0], self._sum[1] + sign * more[1])

    def _most(self, hold: _Hold) -> tuple[int, float]:
        return self._tokens_and_money(hold, hold.calls * self._ratio.most(hold.size))

    def _likely(self, hold: _Hold) -> tuple[int, float]:
        return self._tokens_and_money(hold, hold.calls * self._ratio.likely(hold.size))

    def _tokens_and_money(self, hold: _Hold, prompt: int) -> tuple[int, float]:
        tokens = Tokens(prompt=prompt, completion=hold.asked)
        if self.money is None:
            return prompt + hold.asked, 0.0
        price = self._profile.price(hold.model)
        if price is None:
            raise no_price(hold.model)
        dearest = self._profile.price(self._dearest) if self._dearest is not None else None
        if dearest is None or price.output > dearest.output:
            self._dearest = hold.model
        return prompt + hold.asked, price.cost(tokens, batch=self._batch)


def no_price(model: str) -> InputError:
    return InputError(
        f"--budget: the model {model!r} has no price: set BRIMFUL_PRICES to a TOML file with a table "
        f'["{model}"], input = …, output = … (for a million tokens), or use --budget-tokens'
    )
