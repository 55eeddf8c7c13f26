"""Missing choices are requested again, and every choice gets its own index."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.packing.usage import merge_usage
from brimful.profile import get_profile
from brimful.request import Request
from brimful_worker.provider.assembly import Assembly, Part

ACS = get_profile("acs")


def request(prompt: Any, **fields: Any) -> Request:
    return Request.parse({"prompt": prompt, "max_tokens": 4, **fields}, ACS)


def reply(part: Part, give: Any) -> dict[str, Any]:
    """An answer with the choices for which ``give(index)`` is true; each text is its prompt."""
    n = part.request.n
    return {
        "id": "c",
        "choices": [
            {"index": index, "text": f"{part.request.prompts[index // n]}"}
            for index in range(len(part.choice_indexes))
            if give(index)
        ],
        "usage": {"prompt_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}},
    }


def test_a_complete_answer_is_returned_unchanged() -> None:
    assembly = Assembly(request(["a", "b"], n=2))
    part = assembly.next_part()
    assert part.choice_indexes == (0, 1, 2, 3)
    answer = reply(part, lambda _: True)
    assert assembly.take(part, answer)
    assert assembly.complete
    assert assembly.completion() is answer


def test_only_the_missing_choices_are_requested() -> None:
    assembly = Assembly(request(["a", "b", "c"], n=3, temperature=0.7))
    part = assembly.next_part()
    assembly.take(part, reply(part, lambda index: index not in (1, 4, 5, 7)))  # one of a, two of b, one of c
    part = assembly.next_part()
    assert (part.request.fields["prompt"], part.request.n, part.choice_indexes) == (["a", "c"], 1, (1, 7))
    assert part.request.fields["temperature"] == 0.7
    assembly.take(part, reply(part, lambda _: True))
    part = assembly.next_part()
    assert (part.request.fields["prompt"], part.request.n, part.choice_indexes) == (["b"], 2, (4, 5))
    assembly.take(part, reply(part, lambda _: True))
    done = assembly.completion()
    assert [choice["index"] for choice in done["choices"]] == list(range(9))
    assert [choice["text"] for choice in done["choices"]] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert done["usage"] == {"prompt_tokens": 6, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 3}}


@pytest.mark.parametrize("prompt", ["one string", [7, 8, 9]])
def test_a_single_prompt_keeps_its_form(prompt: Any) -> None:
    assembly = Assembly(request(prompt, n=3))
    part = assembly.next_part()
    assembly.take(part, reply(part, lambda index: index == 1))
    part = assembly.next_part()
    assert (part.request.fields["prompt"], part.request.n, part.choice_indexes, part.prompts) == (prompt, 2, (0, 2), 1)


def test_with_a_seed_a_server_that_ignores_n_is_asked_for_one_choice_after_the_other() -> None:
    """With the same seed it would repeat its one choice for ever."""
    assembly = Assembly(request("a", n=3, seed=7))
    assembly.take(assembly.next_part(), reply(Part(request("a", n=3, seed=7), (0, 1, 2)), lambda index: index == 0))
    for choice in (1, 2):
        part = assembly.next_part()
        assert (part.request.n, part.request.fields["seed"], part.choice_indexes) == (1, 7 + choice, (choice,))
        assert assembly.take(part, reply(part, lambda _: True))
    assert assembly.complete


def test_with_a_seed_the_prompt_is_requested_with_its_full_n() -> None:
    assembly = Assembly(request(["a", "b"], n=3, seed=1))
    part = assembly.next_part()
    assembly.take(part, reply(part, lambda index: index != 4))
    part = assembly.next_part()
    assert (part.request.fields["prompt"], part.request.n, part.choice_indexes) == (["b"], 3, (None, 4, None))
    assembly.take(part, reply(part, lambda _: True))
    assert assembly.complete
    assert [choice["index"] for choice in assembly.completion()["choices"]] == [0, 1, 2, 3, 4, 5]


def test_take_returns_false_if_no_choice_is_new() -> None:
    assembly = Assembly(request("a", n=2, seed=1))
    part = assembly.next_part()
    assert assembly.take(part, reply(part, lambda index: index == 0))
    part = assembly.next_part()
    assert not assembly.take(part, reply(part, lambda index: index == 0))


@settings(deadline=None)  # no assertion on the wall clock of a busy machine
@given(data=st.data(), prompts=st.integers(1, 5), n=st.integers(1, 5), seeded=st.booleans())
def test_every_choice_ends_at_its_index(data: st.DataObject, prompts: int, n: int, seeded: bool) -> None:
    names = [f"p{number}" for number in range(prompts)]
    assembly = Assembly(request(names, n=n, **({"seed": 1} if seeded else {})))
    for _ in range(200):
        part = assembly.next_part()
        assembly.take(part, reply(part, lambda _: data.draw(st.booleans())))
        if assembly.complete:
            break
    else:
        return
    done = assembly.completion()
    assert [choice["text"] for choice in done["choices"]] == [name for name in names for _ in range(n)]


def test_usage_with_missing_nested_and_odd_values_is_added_up() -> None:
    assert merge_usage(None, None) is None
    assert merge_usage({"a": 1}, None) == {"a": 1}
    assert merge_usage({"a": 1, "b": None, "c": "x"}, {"a": 2, "b": 3, "d": True}) == {
        "a": 3,
        "b": 3,
        "c": "x",
        "d": True,
    }
    assert merge_usage({"a": {"b": 1}}, {"a": 5}) == {"a": {"b": 1}}
