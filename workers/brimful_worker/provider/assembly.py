"""Assembles one complete answer out of several incomplete ones, by requesting the missing choices. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from brimful.packing.usage import merge_usage
from brimful.request import Request


@dataclass(slots=True)
class Part:
    """One request to send, and where its choices belong in the complete answer."""

    request: Request
    choice_indexes: tuple[int | None, ...]
    """The index in the complete answer for each index of this part's answer; None if that choice is not needed."""

    @property
    def prompts(self) -> int:
        return len(self.choice_indexes) // self.request.n


class Assembly:
    """The answer to one request while its choices are collected."""

    __slots__ = ("_answer", "_choices", "_expected", "_n_ignored", "_request", "_usages")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._expected = request.choices
        self._choices: dict[int, dict[str, Any]] = {}
        self._answer: dict[str, Any] | None = None
        self._usages: list[Any] = []
        self._n_ignored = False
        """The server gives one choice whatever ``n`` is."""

    @property
    def complete(self) -> bool:
        return len(self._choices) == self._expected

    def next_part(self) -> Part:
        """The complete request at first; then one request for the prompts that miss equally many choices.

        Of several such groups, the one with the most missing choices is next. With a ``seed``, a request with a
        smaller ``n`` would repeat the choices that are already there: so each prompt is requested in full, and only
        its missing choices are taken. From a server that ignores ``n``, choice c is requested alone, with ``seed + c``.
        """
        request = self._request
        if not self._choices:
            return Part(request, tuple(range(self._expected)))
        n = request.n
        missing: dict[int, list[int]] = defaultdict(list)
        for index in range(self._expected):
            if index not in self._choices:
                missing[index // n].append(index)
        choice_indexes: tuple[int | None, ...]
        seed = request.fields.get("seed")
        if self._n_ignored and isinstance(seed, int):
            prompt, indexes = next(iter(missing.items()))
            texts = request.prompts
            fields = {**request.fields, "n": 1, "seed": seed + indexes[0] % n}
            if request.prompt_count > 1:
                fields["prompt"] = [texts[prompt]]
            return Part(replace(request, fields=fields), (indexes[0],))
        if seed is not None:
            prompts, choices = list(missing), n
            wanted = (prompt * n + choice for prompt in prompts for choice in range(n))
            choice_indexes = tuple(None if index in self._choices else index for index in wanted)
        else:
            groups: dict[int, list[int]] = defaultdict(list)
            for prompt, indexes in missing.items():
                groups[len(indexes)].append(prompt)
            choices, prompts = max(groups.items(), key=lambda group: group[0] * len(group[1]))
            choice_indexes = tuple(index for prompt in prompts for index in missing[prompt])
        fields = {**request.fields, "n": choices}
        if request.prompt_count > 1:
            texts = request.prompts
            fields["prompt"] = [texts[prompt] for prompt in prompts]
        return Part(replace(request, fields=fields), choice_indexes)

    def take(self, part: Part, completion: dict[str, Any]) -> bool:
        """Add the choices of a part's classified completion. False if none of them is new."""
        before = len(self._choices)
        for choice in completion["choices"]:
            index = part.choice_indexes[choice["index"]]
            if index is not None and index not in self._choices:
                self._choices[index] = choice if choice["index"] == index else {**choice, "index": index}
        n, new = part.request.n, len(self._choices) > before
        # One of two choices may be missing by chance, but not twice in a row, nor most of several.
        if (n > 2 or (n == 2 and not new)) and part.prompts == 1 and len(completion["choices"]) == 1:
            self._n_ignored = True
        self._usages.append(completion.get("usage"))
        if self._answer is None:
            self._answer = completion
        return new

    def completion(self) -> dict[str, Any]:
        """The complete answer: the first part's other fields, all choices in order, the usage of all parts summed."""
        assert self.complete
        assert self._answer is not None
        answer = self._answer
        if len(self._usages) > 1:
            answer = {**answer, "choices": [self._choices[index] for index in range(self._expected)]}
            if (usage := merge_usage(*self._usages)) is not None:
                answer["usage"] = usage
        return answer
