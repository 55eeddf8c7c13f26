"""The mock model's texts, token counts and prompt digests."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from brimful.runtime.json_bytes import encode
from brimful_worker.gateway.model.text import count_tokens, prompt_digest, sample_text


def test_same_identity_same_text() -> None:
    digest = prompt_digest("The sky is")
    first = sample_text(digest, 0, max_tokens=20, seed=1, model="m")
    assert first == sample_text(digest, 0, max_tokens=20, seed=1, model="m")
    others = [
        sample_text(digest, 1, max_tokens=20, seed=1, model="m"),
        sample_text(digest, 0, max_tokens=20, seed=2, model="m"),
        sample_text(digest, 0, max_tokens=20, seed=1, model="n"),
        sample_text(prompt_digest("The sky was"), 0, max_tokens=20, seed=1, model="m"),
    ]
    assert len({first, *others}) == 5


def test_temperature_0_gives_one_text() -> None:
    digest = prompt_digest("The sky is")
    texts = {sample_text(digest, choice, max_tokens=20, seed=choice, greedy=True) for choice in range(4)}
    assert len(texts) == 1


def test_a_thousand_prompts_give_a_thousand_texts() -> None:
    texts = {sample_text(prompt_digest(f"question {number}"), 0, max_tokens=12)[0] for number in range(1000)}
    assert len(texts) == 1000


@given(st.text(), st.integers(1, 600))
def test_finish_reason_tells_whether_it_was_cut(prompt: str, max_tokens: int) -> None:
    text, tokens, finish = sample_text(prompt_digest(prompt), 0, max_tokens=max_tokens)
    assert len(text.split()) == tokens <= max_tokens
    assert finish == ("length" if tokens == max_tokens else "stop")
    assert tokens <= 400


def test_unicode_texts_survive_json() -> None:
    texts = [sample_text(prompt_digest(str(n)), 0, max_tokens=60, odd=True)[0] for n in range(50)]
    assert json.loads(encode(texts)) == texts
    assert any("\ud800" in text for text in texts)
    assert any("\u2028" in text for text in texts)


def test_tokens_of_the_documented_prompts() -> None:
    assert count_tokens("The sky is") + count_tokens("The grass is") == 8  # the page's own example
    assert count_tokens([5, 6, 7]) == 3
    assert count_tokens([{"role": "user", "content": "Hello"}]) == 6
    assert count_tokens([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]) == 6


def test_digests_of_strings_tokens_and_surrogates_differ() -> None:
    assert len({prompt_digest(p) for p in ("1", [1], [1, 2], "\ud800", "", [{"role": "user", "content": "1"}])}) == 6
