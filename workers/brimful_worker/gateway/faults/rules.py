"""Rules for which requests meet which fault, their text form, and the choice of a fault for a request.

    500:0.05            the fault 500 with probability 0.05
    reset:x2            the next 2 requests
    503:#5              the 5th request (counted from when the rule is set)
    504:%10             every 10th request
    filter:@forbidden   requests with a prompt that contains "forbidden"
    hang=30:0.01        a parameter: hang for 30 s, then answer
    poll/500:x3         only requests of that kind: completions, chat, submit, job, poll, result, cancel, any

Rules are separated by commas and tried in order; the probabilities of several rules add up. A rule without a kind
applies to completions, chat completions and Job submissions. ``job`` is the Job's own run at the gateway.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from brimful.errors import SettingError
from brimful_worker.gateway.faults import answers, refusals  # noqa: F401 (they register their faults)
from brimful_worker.gateway.faults.fault import FAULTS, Fault

WORK = frozenset({"completions", "chat", "submit"})
KINDS = WORK | {"job", "poll", "result", "cancel"}


@dataclass(slots=True)
class Rule:
    """A fault and its condition, ``probability`` or ``when``; without one, it applies to every request."""

    fault: Fault
    kinds: frozenset[str] = WORK
    probability: float | None = None
    when: Callable[[Rule, Sequence[Any]], bool] | None = None
    """Called with this rule and the request's prompts (strings, token ids or messages)."""
    happened: int = 0
    """Requests that met the fault."""
    seen: int = field(default=0, repr=False)
    """Requests of its kinds, this one included."""

    def applies(self, prompts: Sequence[Any], draw: float) -> bool:
        """Whether this request meets the fault; ``draw`` in [0, 1) is reduced by the probabilities of earlier rules."""
        self.seen += 1
        if self.when is not None:
            applies = self.when(self, prompts)
        else:
            applies = self.probability is None or 0 <= draw < self.probability
        self.happened += applies
        return applies


class Faults:
    """The rules in force, with their random generator."""

    def __init__(self, rules: str | Iterable[Rule], seed: int) -> None:
        """Raises SettingError."""
        self.rules = parse_faults(rules) if isinstance(rules, str) else list(rules)
        self._random = random.Random(seed)

    def choose(self, kind: str, prompts: Sequence[Any] = ()) -> Fault | None:
        """The fault of this request, if any. Draws one random number, so that the seed determines what happens."""
        if not self.rules:
            return None
        draw = self._random.random()
        for rule in self.rules:
            if kind not in rule.kinds:
                continue
            if rule.applies(prompts, draw):
                return rule.fault
            draw -= rule.probability or 0.0
        return None


def parse_faults(text: str) -> list[Rule]:
    """Rules from their text form. Raises SettingError naming the rule."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def _parse(text: str) -> Rule:
    what, _, when = text.partition(":")
    kinds, slash, name = what.partition("/")
    if not slash:
        kinds, name = "", what
    name, _, parameter = name.partition("=")
    if name not in FAULTS:
        raise SettingError(f"fault {text!r}: unknown fault {name!r}; known are {', '.join(sorted(FAULTS))}")
    try:
        rule = Rule(FAULTS[name].make(parameter))
    except ValueError:
        raise SettingError(f"fault {text!r}: invalid parameter {parameter!r} for {name}") from None
    if kinds:
        if kinds != "any" and kinds not in KINDS:
            raise SettingError(f"fault {text!r}: unknown kind {kinds!r}; known are any, {', '.join(sorted(KINDS))}")
        rule.kinds = KINDS if kinds == "any" else frozenset({kinds})
        if kinds == "job" and rule.fault.needs_connection:
            raise SettingError(f"fault {text!r}: a Job's own run has no connection; use submit, poll or result")
        if rule.fault.needs_connection:
            rule.kinds -= {"job"}
    elif name == "jobfail":
        rule.kinds = frozenset({"job"})
    try:
        _set_condition(rule, when.strip())
    except ValueError:
        raise SettingError(
            f"fault {text!r}: {when!r} must be a probability (0.05), xN (the next N), #N (the Nth), %N (every Nth) "
            "or @TEXT (prompts that contain TEXT)"
        ) from None
    return rule


def _set_condition(rule: Rule, when: str) -> None:
    sign, rest = when[:1], when[1:]
    if sign == "@" and rest:
        rule.when = lambda rule, prompts: any(rest in (p if isinstance(p, str) else repr(p)) for p in prompts)
    elif sign in ("x", "#", "%"):
        number = int(rest)
        if number < 1:
            raise ValueError(when)
        rule.when = {
            "x": lambda rule, prompts: rule.happened < number,
            "#": lambda rule, prompts: rule.seen == number,
            "%": lambda rule, prompts: rule.seen % number == 0,
        }[sign]
    elif when:
        rule.probability = float(when)
        if not 0 <= rule.probability <= 1:
            raise ValueError(when)
