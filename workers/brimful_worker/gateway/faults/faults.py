"""Which requests meet which fault: rules, their text form, and the choosing.

    500:0.05            the fault 500 with probability 0.05
    reset:x2            the next 2 requests
    503:#5              the 5th request (from the moment the rule is set)
    504:%10             every 10th request
    filter:@forbidden   requests with a prompt that contains "forbidden"
    hang=30:0.01        a parameter: hang for 30 s, then answer
    poll/500:x3         only requests of that kind: completions, chat, submit, job, poll, result, cancel, any

Rules are separated by commas and tried in order; probabilities are of disjoint events, so that they add up. Without a
kind a rule meets completions, chat completions and Job submissions. ``job`` is the Job's own run at the gateway.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from brimful_worker.gateway.faults import answers, breaks, refusals  # noqa: F401 (they register)
from brimful_worker.gateway.wire import FAULTS, Fault

WORK = frozenset({"completions", "chat", "submit"})
KINDS = WORK | {"job", "poll", "result", "cancel"}


class FaultError(ValueError):
    """A fault's text is not understood; the message says what is known."""


@dataclass(slots=True)
class Rule:
    """A fault and when it happens. One of the last five says when; with none it is every request."""

    fault: Fault
    kinds: frozenset[str] = WORK
    probability: float | None = None
    count: int | None = None
    nth: int | None = None
    every: int | None = None
    prompt: Callable[[Any], bool] | None = None
    """True for a prompt (string, token ids or messages) that meets it."""
    happened: int = 0
    met: int = field(default=0, repr=False)

    def happens(self, prompts: Sequence[Any], draw: float) -> bool:
        """Whether it happens to this request; ``draw`` is already lessened by earlier rules' probabilities."""
        self.met += 1
        if self.count is not None:
            happens = self.happened < self.count
        elif self.nth is not None:
            happens = self.met == self.nth
        elif self.every is not None:
            happens = self.met % self.every == 0
        elif self.prompt is not None:
            happens = any(map(self.prompt, prompts))
        else:
            happens = self.probability is None or 0 <= draw < self.probability
        self.happened += happens
        return happens


class Faults:
    """The rules in force, and their randomness."""

    def __init__(self, rules: str | Iterable[Rule], seed: int) -> None:
        """Raises FaultError."""
        self.rules = parse_faults(rules) if isinstance(rules, str) else list(rules)
        self._random = random.Random(seed)

    def choose(self, kind: str, prompts: Sequence[Any] = ()) -> Fault | None:
        """The fault of this request, if any. Draws one random number, so that a seed fixes what happens."""
        if not self.rules:
            return None
        draw = self._random.random()
        for rule in self.rules:
            if kind not in rule.kinds:
                continue
            if rule.happens(prompts, draw):
                return rule.fault
            draw -= rule.probability or 0.0
        return None


def parse_faults(text: str) -> list[Rule]:
    """Rules from their text form. Raises FaultError naming the part."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def _parse(text: str) -> Rule:
    what, _, when = text.partition(":")
    kinds, slash, name = what.partition("/")
    if not slash:
        kinds, name = "", what
    name, _, parameter = name.partition("=")
    if name not in FAULTS:
        raise FaultError(f"fault {text!r}: no fault is called {name!r}; there are {', '.join(sorted(FAULTS))}")
    try:
        rule = Rule(FAULTS[name].make(parameter or None))
    except ValueError:
        raise FaultError(f"fault {text!r}: {parameter!r} is no parameter for {name}") from None
    if kinds:
        if kinds != "any" and kinds not in KINDS:
            raise FaultError(f"fault {text!r}: {kinds!r} is none of any, {', '.join(sorted(KINDS))}")
        rule.kinds = KINDS if kinds == "any" else frozenset({kinds})
        if kinds == "job" and rule.fault.wired:
            raise FaultError(f"fault {text!r}: a Job's own run has no connection to break; use submit, poll or result")
        if rule.fault.wired:
            rule.kinds -= {"job"}
    elif name == "jobfail":
        rule.kinds = frozenset({"job"})
    try:
        _set_when(rule, when.strip())
    except ValueError:
        raise FaultError(
            f"fault {text!r}: {when!r} must be a probability (0.05), xN (the next N), #N (the Nth), %N (every Nth) "
            "or @TEXT (prompts that contain TEXT)"
        ) from None
    return rule


def _set_when(rule: Rule, when: str) -> None:
    if when.startswith("@") and len(when) > 1:
        needle = when[1:]
        rule.prompt = lambda prompt: needle in (prompt if isinstance(prompt, str) else repr(prompt))
    elif when.startswith("x"):
        rule.count = _whole(when[1:])
    elif when.startswith("#"):
        rule.nth = _whole(when[1:])
    elif when.startswith("%"):
        rule.every = _whole(when[1:])
    elif when:
        rule.probability = float(when)
        if not 0 <= rule.probability <= 1:
            raise ValueError(when)


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value
