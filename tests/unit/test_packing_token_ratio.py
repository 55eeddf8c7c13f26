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
