"""Tokens of prompts, learnt from what the provider counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.packing.token_ratio import PromptSize, TokenRatio

PROSE = PromptSize.of(["It was a bright cold day in April, and the clocks were striking thirteen. " * 4])
DIGITS = PromptSize.of(["0 729 458 187 916 645 374 103 832 561 290 19 748 477 206 935 664 393 122 851 " * 4])


def test_sizes_count_bytes_and_token_ids() -> None:
    assert PromptSize.of(["abc"]) == (0, 3, 1)
    assert PromptSize.of(["漢字"]) == (0, 6, 1)
    assert PromptSize.of([[1, 2, 3], "a"]) == (3, 1, 1)
    chat = [{"role": "user", "content": "ab"}, {"role": "user", "content": [{"type": "text", "text": "c"}, {"x": 1}]}]
    assert PromptSize.of([chat]) == (0, 3, 2)
    assert PromptSize.of(["\ud800"]).bytes == 3


def test_one_token_a_byte_is_assumed_until_a_prompt_was_counted() -> None:
    ratio = TokenRatio()
    assert ratio.most(DIGITS) >= DIGITS.bytes
    assert ratio.likely(PROSE) == round(PROSE.bytes / 4)
    ratio.learn(PROSE, PROSE.bytes // 4)
    assert PROSE.bytes // 4 <= ratio.most(PROSE) <= 1.3 * PROSE.bytes / 4 + 5
    ratio.learn(DIGITS, DIGITS.bytes // 2)
    assert ratio.most(PROSE) >= PROSE.bytes / 2
    assert ratio.least(PROSE) <= PROSE.bytes / 4


def test_what_a_template_adds_to_short_prompts_is_learnt() -> None:
    ratio, short = TokenRatio(), PromptSize.of(["Hi"])
    ratio.learn(short, 30)
    assert 30 <= ratio.most(short) <= 41
    assert ratio.most(DIGITS) >= DIGITS.bytes + 30


def test_token_ids_are_exact() -> None:
    ratio = TokenRatio()
    assert ratio.most(PromptSize.of([[1] * 50])) == 50
    ratio.learn(PromptSize.of([[1] * 50]), 51)
    assert not ratio.known


@given(st.lists(st.tuples(st.text(min_size=1), st.floats(0.1, 1.0)), min_size=1, max_size=8))
def test_what_was_counted_is_never_underestimated_again(seen: list[tuple[str, float]]) -> None:
    ratio = TokenRatio()
    counted = []
    for text, tokens_a_byte in seen:
        size = PromptSize.of([text])
        counted.append((size, max(1, round(size.bytes * tokens_a_byte))))
        ratio.learn(*counted[-1])
    assert all(tokens <= ratio.most(size) for size, tokens in counted)


def test_sizes_begin_at_nothing_and_add_up() -> None:
    assert PromptSize() == (0, 0, 0)
    assert PromptSize(1, 20, 300) + PromptSize(4, 50, 600) == PromptSize(5, 70, 900)
    assert PromptSize.of(["", [{"role": "user", "content": None}, {"role": "user"}], [7]]) == (1, 0, 3)


def test_what_is_not_counted_teaches_nothing() -> None:
    ratio = TokenRatio()
    assert not ratio.known
    for size, counted in ((PROSE, 0), (PromptSize(9, 100, 1), 9), (PromptSize.of([""]), 5), (PromptSize(1), 7)):
        ratio.learn(size, counted)
        assert not ratio.known
        assert ratio.revision == 0
    ratio.learn(PROSE, 60)
    assert ratio.known


def test_the_bounds_follow_from_the_extremes_that_were_seen() -> None:
    ratio, size = TokenRatio(), PromptSize(0, 1000, 1)
    assert (ratio.most(size), ratio.least(size), ratio.likely(size)) == (1004, 0, 250)
    ratio.learn(size, 200)
    ratio.learn(size, 400)
    assert (ratio.most(size), ratio.least(size), ratio.likely(size)) == (484, 200, 300)
    with_ids = PromptSize(7, 1000, 1)
    assert (ratio.most(with_ids), ratio.least(with_ids), ratio.likely(with_ids)) == (491, 207, 307)
    ratio.learn(with_ids, 7 + 100)
    assert (ratio.most(size), ratio.least(size)) == (484, 100)


def test_no_text_has_more_than_a_token_a_byte_at_least() -> None:
    ratio, size = TokenRatio(), PromptSize(0, 100, 1)
    ratio.learn(size, 150)
    assert ratio.least(size) == 100
    assert ratio.most(size) == 184


def test_a_part_is_short_below_64_bytes() -> None:
    ratio = TokenRatio()
    ratio.learn(PromptSize(0, 63, 1), 20)
    assert ratio.most(PromptSize(0, 63, 1)) == 24
    assert ratio.most(PromptSize(0, 126, 2)) == 48
    assert ratio.most(PromptSize(0, 64, 1)) == 64 + 24
    ratio.learn(PromptSize(0, 64, 1), 32)
    assert ratio.most(PromptSize(0, 64, 1)) == 63  # 1.2 x (32 + 20), rounded up


def test_the_revision_changes_with_the_upper_bound_only() -> None:
    ratio, revisions = TokenRatio(), []
    for bytes_, counted in ((100, 20), (100, 20), (100, 10), (100, 30), (10, 5), (10, 4), (10, 6)):
        ratio.learn(PromptSize(0, bytes_, 1), counted)
        revisions.append(ratio.revision)
    assert revisions == [1, 1, 1, 2, 3, 3, 4]


def test_every_part_has_a_token_at_least() -> None:
    assert TokenRatio().likely(PromptSize(0, 8, 4)) == 4
    assert TokenRatio().likely(PromptSize(0, 40, 4)) == 10
