"""A complete answer out of several short ones: what is still missing is asked for, and put in its place. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from brimful.request import Request
from brimful_worker.provider.answers.choices import merge_usage


@dataclass(slots=True)
class Part:
    """One request to be sent, and where its choices belong."""

    request: Request
    places: tuple[int | None, ...]
    """For each index of its answer: the index in the whole answer, None where that choice is already there."""

    @property
    def prompts(self) -> int:
        return len(self.places) // self.request.n


class Assembly:
    """The answer to one request as it comes together."""

    __slots__ = ("_answer", "_choices", "_request", "_usages", "_whole")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._whole = request.choices
        self._choices: dict[int, dict[str, Any]] = {}
        self._answer: dict[str, Any] | None = None
        self._usages: list[Any] = []

    @property
    def complete(self) -> bool:
        return len(self._choices) == self._whole

    def next_part(self) -> Part:
        """The whole request at first; then, as one request, the largest set of prompts that miss equally many choices.

        With a ``seed`` the same choices would come again for a smaller ``n``: those prompts are asked anew in full, and
        only what was missing is taken.
        """
        request, n = self._request, self._request.n
        if not self._choices:
            return Part(request, tuple(range(self._whole)))
        missing: dict[int, list[int]] = defaultdict(list)
        for index in range(self._whole):
            if index not in self._choices:
                missing[index // n].append(index)
        if request.fields.get("seed") is not None:
            chosen, asked = list(missing), n
            places = tuple(
                None if (index := prompt * n + choice) in self._choices else index
                for prompt in chosen
                for choice in range(n)
            )
        else:
            groups: dict[int, list[int]] = defaultdict(list)
            for prompt, indexes in missing.items():
                groups[len(indexes)].append(prompt)
            asked = max(groups, key=lambda count: count * len(groups[count]))
            chosen = groups[asked]
            places = tuple(index for prompt in chosen for index in missing[prompt])
        fields = {**request.fields, "n": asked}
        if request.prompt_count > 1:
            prompts = request.prompts
            fields["prompt"] = [prompts[prompt] for prompt in chosen]
        return Part(replace(request, fields=fields), places)

    def take(self, part: Part, completion: dict[str, Any]) -> bool:
        """Put a part's checked completion in its place; False where it brought nothing new."""
        before = len(self._choices)
        for choice in completion["choices"]:
            place = part.places[choice["index"]]
            if place is not None and place not in self._choices:
                self._choices[place] = choice if choice["index"] == place else {**choice, "index": place}
        self._usages.append(completion.get("usage"))
        if self._answer is None:
            self._answer = completion
        return len(self._choices) > before

    def completion(self) -> dict[str, Any]:
        """The whole answer: the first one's envelope, all choices in order, the usage of all requests added up."""
        assert self.complete
        assert self._answer is not None
        answer = self._answer
        if len(self._usages) > 1:
            answer = {**answer, "choices": [self._choices[index] for index in range(self._whole)]}
            if (usage := merge_usage(*self._usages)) is not None:
                answer["usage"] = usage
        return answer
