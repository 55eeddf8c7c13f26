"""Packing and unpacking: every rollout is requested once, within the bounds, and returned under its line's indexes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import RequestTooLarge
from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.packing import PackedRequest, PackKey, fill_requests, slices_of, split_failed
from brimful.packing.request_size import MAX_PACK_BYTES, line_profile
from brimful.packing.units import Unit, manifest_from, manifest_message
from brimful.packing.unpacking import failed_lines, unpack
from brimful.profile import Profile, get_profile
from brimful.request import Request

ACS = get_profile("acs")


def unit(line: int, wanted: Any = None, **fields: Any) -> Unit:
    request = Request.parse(fields, line_profile(ACS))
    return Unit(line, str(line), request, wanted)


def pack(*units: Unit, limit: int = 10**6, profile: Profile = ACS) -> list[PackedRequest]:
    groups: dict[str, Any] = {}
    for wish in units:
        for pack_key, slice in slices_of(wish, profile):
            groups.setdefault(pack_key.key, (pack_key, []))[1].append(slice)
    return [
        PackedRequest(f"r{place}-{index}", pack_key, chunk)
        for place, (pack_key, slices) in enumerate(groups.values())
        for index, chunk in enumerate(fill_requests(slices, min(limit, pack_key.limit)))
    ]


def answer(packed: PackedRequest) -> Outcome:
    """As the provider would answer: choice i of prompt p is p*n+i, its text names both."""
    request = packed.request
    texts = [f"{json.dumps(prompt)}#{choice}" for prompt in request.prompts for choice in range(request.n)]
    completion = {
        "model": "llama-8b",
        "choices": [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(texts)],
        "usage": {"total_tokens": 7},
    }
    return Outcome(id=packed.id, completion=completion, attempts=1)


wishes = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.one_of(
                st.text(max_size=5),
                st.lists(st.text(max_size=3), min_size=1, max_size=4),
                st.lists(st.integers(0, 9), min_size=1, max_size=3),
                st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3),
            ),
            "n": st.integers(1, 5),
            "max_tokens": st.sampled_from([1, 8000, 16000, 31999]),
            "temperature": st.sampled_from([0, 1.0]),
        }
    ),
    max_size=12,
)


def test_requests_are_shared_by_lines_whose_fields_are_equal_in_json() -> None:
    same = [{"temperature": 0.5, "echo": True}, {"echo": True, "temperature": 0.5}]
    nested = [{"extra": {"a": 1, "b": 2}}, {"extra": {"b": 2, "a": 1}}]
    others = [{"echo": 1}, {"echo": 1.0}, {"echo": True}, {"echo": "True"}, {"extra": {"a": True, "b": 2}}]
    fields = [*same, *nested, *others]
    packs = pack(*(unit(line, prompt="p", max_tokens=4, **each) for line, each in enumerate(fields)))
    assert [[entry.line for entry in packed.manifest] for packed in packs] == [[0, 1], [2, 3], [4], [5], [6], [7], [8]]


@given(wishes, st.data())
@settings(deadline=None, max_examples=150)
def test_every_wanted_rollout_is_returned_once_under_its_own_index(asked: list[dict[str, Any]], data: Any) -> None:
    units = []
    expected = set()
    for line, fields in enumerate(asked, 1):
        whole = unit(line, **fields)
        every = [(p, c) for p in range(len(whole.request.prompts)) for c in range(whole.request.n)]
        wanted = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(every), min_size=1, unique=True).map(tuple)))
        units.append(unit(line, wanted, **fields))
        expected |= {(line, *place) for place in (wanted or every)}
    got = []
    for packed in pack(*units, limit=data.draw(st.integers(1, 6))):
        packed.request.check(ACS)
        manifest = manifest_from(json.loads(json.dumps(manifest_message(packed.manifest))))
        assert manifest == packed.manifest
        for share in unpack(manifest, answer(packed)):
            assert share.id == str(share.line)
            prompts = units[share.line - 1].request.prompts
            for rollout in share.rollouts:
                got.append((share.line, rollout.prompt_index, rollout.choice_index))
                assert rollout.text.startswith(json.dumps(prompts[rollout.prompt_index]) + "#")
    assert len(got) == len(set(got))
    assert set(got) == expected


def test_compatible_lines_share_a_request_up_to_the_bound() -> None:
    packs = pack(*(unit(line, prompt=f"p{line}", max_tokens=32) for line in range(1, 1501)))
    assert [len(packed.slices) for packed in packs] == [1000, 500]
    assert packs[0].request.tokens_at_most == 32000


@pytest.mark.parametrize(
    "other",
    [{"temperature": 0.5}, {"model": "other"}, {"n": 2}, {"prompt": [1, 2]}, {"mode": "job"}, {"stop": ["x"]}],
)
def test_lines_that_differ_in_any_field_do_not_share(other: dict[str, Any]) -> None:
    same = {"prompt": "a", "max_tokens": 4}
    assert len(pack(unit(1, **same), unit(2, **same))) == 1
    assert len(pack(unit(1, **same), unit(2, **{**same, **other}))) == 2


def test_lines_that_name_the_default_model_share_with_those_that_name_none() -> None:
    assert len(pack(unit(1, prompt="a", max_tokens=1), unit(2, prompt="b", max_tokens=1, model="llama-8b"))) == 1


def test_without_max_tokens_nothing_is_packed_where_it_is_required() -> None:
    assert [len(packed.slices) for packed in pack(unit(1, prompt="a"), unit(2, prompt="b"))] == [1, 1]


def test_chat_is_never_packed() -> None:
    chats = [unit(line, prompt="hi", mode="chat", max_tokens=1) for line in (1, 2)]
    packs = pack(*chats)
    assert [packed.request.mode for packed in packs] == [Mode.CHAT, Mode.CHAT]
    assert packs[0].request.prompts == [[{"role": "user", "content": "hi"}]]


def test_more_choices_than_one_request_takes_are_split_evenly() -> None:
    packs = pack(unit(1, prompt="a", n=100, max_tokens=500))
    assert [packed.request.n for packed in packs] == [50, 50]
    assert [packed.slices[0].choices[0] for packed in packs] == [0, 50]


def test_a_split_line_gets_another_seed_for_each_request() -> None:
    packs = pack(unit(1, prompt="a", n=100, max_tokens=500, seed=7))
    assert [packed.request.fields["seed"] for packed in packs] == [7, 57]
    [missing] = pack(unit(1, ((0, 2),), prompt="a", n=4, max_tokens=5, seed=7))
    assert (missing.request.fields["seed"], missing.request.n) == (9, 1)


def test_one_choice_too_large_for_any_request_is_refused() -> None:
    with pytest.raises(RequestTooLarge, match="32,001"):
        pack(unit(1, prompt="a", max_tokens=32001))


def test_missing_choices_are_requested_and_returned_under_their_own_indexes() -> None:
    [packed] = pack(unit(3, ((0, 0), (0, 2)), prompt="a", n=3, max_tokens=5))
    assert packed.request.n == 2
    [share] = unpack(packed.manifest, answer(packed))
    assert [(r.prompt_index, r.choice_index) for r in share.rollouts] == [(0, 0), (0, 2)]


def test_request_bodies_are_bounded_and_a_larger_prompt_goes_alone() -> None:
    big, small = "x" * MAX_PACK_BYTES, "y" * (MAX_PACK_BYTES // 3)
    packs = pack(*(unit(i, prompt=p, max_tokens=1) for i, p in enumerate([small, big, small, small, small], 1)))
    assert [len(packed.slices) for packed in packs] == [1, 1, 2, 1]


def test_usage_is_whole_for_one_line_and_shared_among_several() -> None:
    [shared] = pack(unit(1, prompt="a", max_tokens=1), unit(2, prompt="b", max_tokens=1))
    shares = [share.usage["total_tokens"] for share in unpack(shared.manifest, answer(shared)) if share.usage]
    assert sum(shares) == 7
    [alone] = pack(unit(1, prompt=["a", "b"], max_tokens=1))
    [share] = unpack(alone.manifest, answer(alone))
    assert share.usage == {"total_tokens": 7}
    assert [rollout.choice["text"] for rollout in share.rollouts] == [rollout.text for rollout in share.rollouts]


def test_an_answer_that_does_not_fit_the_manifest_raises() -> None:
    [packed] = pack(unit(1, prompt=["a", "b"], max_tokens=1))
    short = {"choices": [{"index": 0, "text": ""}]}
    with pytest.raises(ValueError, match="1 choices for 2"):
        unpack(packed.manifest, Outcome("x", completion=short))
    beyond = {"choices": [{"index": 5, "text": ""}]}
    with pytest.raises(ValueError, match="prompt 5"):
        unpack(packed.manifest, Outcome("x", completion=beyond))


@pytest.mark.parametrize("culprits", [{7}, {0, 99}, set(range(100))])
def test_a_permanently_failed_request_is_split_down_to_the_culprits(culprits: set[int]) -> None:
    [packed] = pack(*(unit(line, prompt=f"p{line}", max_tokens=1) for line in range(100)))
    refused = Failure(Cause.BAD_REQUEST, "400", 400, permanent=True)
    todo, asked, failed, done = [packed.slices], 0, set(), set()
    while todo:
        slices = todo.pop()
        asked += 1
        attempt = PackedRequest("x", packed.pack_key, slices)
        lines = {slice.unit.line for slice in slices}
        if not lines & culprits:
            done |= lines
        elif smaller := split_failed(attempt, refused):
            todo += smaller
        else:
            failed |= {record.line for record in failed_lines(attempt, Outcome("x", failure=refused))}
    assert failed == culprits
    assert done == set(range(100)) - culprits
    assert asked <= 1 + 16 * len(culprits)


@pytest.mark.parametrize(
    ("cause", "status", "permanent", "entry"),
    [
        *((Cause.BAD_REQUEST, status, True, 0) for status in (404, 405, 406, 415)),
        (Cause.BAD_REQUEST, 400, True, 2),
        (Cause.CANCELLED, None, True, 0),
        (Cause.BAD_ANSWER, None, False, 8),
        (Cause.JOB_FAILED, None, False, 8),
        (Cause.KEY_REFUSED, 401, True, 0),
        (Cause.RATE_LIMITED, 429, False, 0),
        (Cause.CONNECTION, None, False, 0),
        (Cause.WORKER_LOST, None, True, 2),
        (Cause.TIMEOUT, None, False, 8),
        (Cause.SERVER_ERROR, 500, False, 8),
        (Cause.BUDGET, 402, True, 2),
    ],
)
def test_only_failures_that_one_prompt_may_cause_split_a_request(
    cause: Cause, status: int | None, permanent: bool, entry: int
) -> None:
    [packed] = pack(*(unit(line, prompt="p", max_tokens=1) for line in range(64)))
    assert len(split_failed(packed, Failure(cause, "", status, permanent))) == entry


def test_a_single_prompt_is_never_split() -> None:
    [packed] = pack(unit(1, prompt="p", max_tokens=1))
    for cause in Cause:
        assert split_failed(packed, Failure(cause, "", 400, permanent=True)) == []


@pytest.mark.parametrize(("lines", "sizes"), [(2, [1, 1]), (9, [4, 5]), (17, [8, 9])])
def test_a_lasting_failure_halves_a_request(lines: int, sizes: list[int]) -> None:
    [packed] = pack(*(unit(line, prompt="p", max_tokens=1) for line in range(lines)))
    assert [len(part) for part in split_failed(packed, Failure(Cause.BAD_REQUEST, "", 400, True))] == sizes


@pytest.mark.parametrize(("lines", "sizes"), [(2, [1, 1]), (8, [1] * 8), (9, [1, 2, 2, 2, 2]), (40, [5] * 8)])
def test_a_failure_that_may_pass_makes_eight_requests_at_most(lines: int, sizes: list[int]) -> None:
    [packed] = pack(*(unit(line, prompt="p", max_tokens=1) for line in range(lines)))
    assert [len(part) for part in split_failed(packed, Failure(Cause.TIMEOUT, ""))] == sizes


def test_what_a_request_carries_and_takes_in_memory() -> None:
    one, two = unit(1, prompt=["abc", "de"], n=2, max_tokens=5), unit(2, prompt="f", n=2, max_tokens=5)
    [packed] = pack(replace(one, columns_bytes=101), two)
    assert (packed.choices, packed.lines, len(packed.slices)) == (6, 2, 3)
    assert packed.size == 7 + 6 + 5
    assert packed.held_bytes == packed.size + 50 + 50, "each prompt has its share of the line's columns"
    assert [each.wanted for each in packed.slices] == [((0, 0), (0, 1)), ((1, 0), (1, 1)), ((0, 0), (0, 1))]
    assert packed.request.n == 2
    assert packed.pack_key.tokens_per_prompt == 10


def test_a_request_with_one_choice_names_no_n() -> None:
    [packed] = pack(unit(1, prompt="a", n=1, max_tokens=5))
    assert packed.request.fields == {"prompt": "a", "max_tokens": 5}
    [several] = pack(unit(1, prompt="a", n=2, max_tokens=5))
    assert several.request.fields == {"prompt": "a", "max_tokens": 5, "n": 2}


def test_without_max_tokens_a_prompt_counts_as_256() -> None:
    [packed] = pack(unit(1, prompt="a"))
    assert packed.pack_key.tokens_per_prompt == 256


def test_pack_keys_are_remembered_up_to_a_bound() -> None:
    known: dict[str, PackKey] = {}
    wish = unit(1, prompt="a", max_tokens=5)
    [(first, _)] = slices_of(wish, ACS, known)
    [(again, _)] = slices_of(wish, ACS, known)
    assert again is first
    known |= {str(place): first for place in range(4095)}
    [(again, _)] = slices_of(wish, ACS, known)
    assert again is first
    list(slices_of(unit(1, prompt="a", max_tokens=6), ACS, known))
    assert len(known) == 1, "all are forgotten for the next one"


def test_a_request_may_have_exactly_the_most_bytes_and_slices() -> None:
    [[whole]] = [pack(unit(1, prompt="x" * (MAX_PACK_BYTES // 2 - 4), max_tokens=1))[0].slices]
    assert [len(part) for part in fill_requests([whole] * 5, 99)] == [2, 2, 1]
    [[small]] = [pack(unit(1, prompt="x", max_tokens=1))[0].slices]
    assert [len(part) for part in fill_requests([small] * 5, 2)] == [2, 2, 1]
    assert list(fill_requests([], 2)) == []


def test_nothing_is_unpacked_without_an_answer_or_a_manifest() -> None:
    [packed] = pack(unit(1, prompt="a", max_tokens=1))
    for manifest, completion in ((packed.manifest, None), ((), answer(packed).completion)):
        with pytest.raises(ValueError, match="no completion to unpack"):
            unpack(manifest, Outcome("x", completion=completion))


def test_what_is_delivered_has_the_answer_s_other_fields() -> None:
    [packed] = pack(unit(1, prompt="a", max_tokens=1), unit(2, prompt="b", max_tokens=1))
    completion = {**(answer(packed).completion or {}), "id": "c-9", "usage": "unknown"}
    first, second = unpack(packed.manifest, Outcome("x", completion=completion), "asked")
    assert first.response == {"model": "llama-8b", "id": "c-9"}
    assert (first.model, first.asked_model, first.packed, first.usage) == ("llama-8b", "asked", 2, None)
    assert (second.line, second.id) == (2, "2")
    del completion["model"]
    assert unpack(packed.manifest, Outcome("x", completion=completion))[0].model == ""


def test_failed_lines_name_all_that_was_wanted_of_each() -> None:
    [packed] = pack(
        unit(1, prompt=["a", "b"], n=2, max_tokens=1), unit(2, ((0, 1), (0, 2)), prompt="c", n=3, max_tokens=1)
    )
    failure = Failure(Cause.BAD_REQUEST, "no")
    first, second = failed_lines(packed, Outcome("x", failure=failure))
    assert (first.line, first.wanted) == (1, ((0, 0), (0, 1), (1, 0), (1, 1)))
    assert (second.line, second.id, second.wanted) == (2, "2", ((0, 1), (0, 2)))
    assert second.failure is failure
