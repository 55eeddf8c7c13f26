"""How many prompts and choices a request may carry, by the provider's bounds."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.errors import RequestTooLarge
from brimful.packing.request_size import (
    check_line,
    lacks_max_tokens,
    line_profile,
    most_choices,
    most_prompts,
    prompt_bytes,
)
from brimful.profile import Profile, get_profile
from brimful.request import Request

ACS = get_profile("acs")


def profile(**fields: Any) -> Profile:
    unbounded = {"max_request_tokens": None, "max_prompts": None, "max_n": None, "max_tokens_required": False}
    return ACS.model_copy(update={**unbounded, **fields})


def request(**fields: Any) -> Request:
    return Request.parse({"prompt": "a", **fields}, profile())


def chat(**fields: Any) -> Request:
    return Request.parse({"messages": [{"role": "user", "content": "a"}], **fields}, profile())


def test_one_choice_must_fit() -> None:
    check_line(request(max_tokens=100), profile(max_request_tokens=100))
    check_line(request(), profile(max_request_tokens=100))
    check_line(request(max_tokens=101), profile())
    with pytest.raises(RequestTooLarge, match="max_tokens: 101 for one choice, above acs's 100"):
        check_line(request(max_tokens=101), profile(max_request_tokens=100))


@pytest.mark.parametrize(
    ("fields", "bounds", "most"),
    [
        ({"n": 9, "max_tokens": 10}, {}, 9),
        ({"n": 9, "max_tokens": 10}, {"max_n": 4}, 4),
        ({"n": 2, "max_tokens": 10}, {"max_n": 4}, 4),
        ({"n": 9, "max_tokens": 10}, {"max_request_tokens": 35}, 3),
        ({"n": 9, "max_tokens": 10}, {"max_request_tokens": 35, "max_n": 2}, 2),
        ({"n": 9, "max_tokens": 10}, {"max_request_tokens": 9}, 1),
        ({"n": 9}, {"max_request_tokens": 35}, 9),
        ({"n": 9}, {"max_request_tokens": 35, "max_tokens_required": True}, 1),
    ],
)
def test_choices_of_one_prompt(fields: dict[str, Any], bounds: dict[str, Any], most: int) -> None:
    assert most_choices(request(**fields), profile(**bounds)) == most


@pytest.mark.parametrize(
    ("fields", "n", "bounds", "most"),
    [
        ({"max_tokens": 10}, 1, {"max_prompts": 7}, 7),
        ({"max_tokens": 10}, 1, {"max_prompts": 1}, 1),
        ({"max_tokens": 10}, 1, {"max_prompts": 2}, 2),
        ({"max_tokens": 10}, 3, {"max_prompts": 7, "max_request_tokens": 125}, 4),
        ({"max_tokens": 10}, 1, {"max_prompts": 7, "max_request_tokens": 125}, 7),
        ({"max_tokens": 10}, 9, {"max_request_tokens": 50}, 1),
        ({}, 1, {"max_prompts": 7}, 7),
        ({}, 1, {"max_prompts": 7, "max_tokens_required": True}, 1),
        ({}, 1, {"max_prompts": 7, "max_request_tokens": 100}, 1),
    ],
)
def test_prompts_of_one_request(fields: dict[str, Any], n: int, bounds: dict[str, Any], most: int) -> None:
    assert most_prompts(request(**fields), n, profile(**bounds)) == most


def test_without_a_bound_there_is_room_for_any_number_of_prompts() -> None:
    assert most_prompts(request(max_tokens=10), 1, profile()) >= 100_000


def test_a_chat_is_alone() -> None:
    assert most_prompts(chat(max_tokens=10), 1, profile()) == 1


def test_which_requests_are_not_packed_for_want_of_max_tokens() -> None:
    required, bounded = profile(max_tokens_required=True), profile(max_request_tokens=100)
    assert lacks_max_tokens(request(), required)
    assert lacks_max_tokens(request(), bounded)
    assert not lacks_max_tokens(request(), profile())
    assert not lacks_max_tokens(request(max_tokens=10), required)
    assert not lacks_max_tokens(chat(), required)
    assert not lacks_max_tokens(request(workload="interactive"), required)
    assert not lacks_max_tokens(request(), profile(max_tokens_required=True, max_prompts=1))
    assert lacks_max_tokens(request(), profile(max_tokens_required=True, max_prompts=2))


@pytest.mark.parametrize(
    ("prompt", "size"),
    [
        ("abc", 7),
        ("", 4),
        ("äöü", 22),
        ([1, 2, 3], 25),
        ([], 2),
        ([{"role": "user", "content": "a"}], len('[{"role": "user", "content": "a"}]')),
        (
            [{"role": "system", "content": "é"}, {"role": "user", "content": ["x"], "name": "b"}],
            len(r'[{"role": "system", "content": "\u00e9"}, {"role": "user", "content": ["x"], "name": "b"}]'),
        ),
    ],
)
def test_the_size_of_a_prompt(prompt: Any, size: int) -> None:
    assert prompt_bytes(prompt) == size


def test_a_line_is_checked_without_the_bounds_that_splitting_meets() -> None:
    lines = line_profile(profile(max_request_tokens=10, max_prompts=1, max_n=1, max_tokens_required=True))
    assert (lines.max_request_tokens, lines.max_prompts, lines.max_n) == (None, None, None)
    assert lines.max_tokens_required
