"""A request's usage, shared among the lines that it carried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.packing.usage import merge_usage, share_usage


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 1000), st.integers(0, 1000))
def test_shares_of_usage_add_up(weights: list[int], prompt: int, completion: int) -> None:
    shares = share_usage({"prompt_tokens": prompt, "completion_tokens": completion}, weights)
    assert sum(share["prompt_tokens"] for share in shares if share) == prompt
    assert sum(share["completion_tokens"] for share in shares if share) == completion


def test_shares_keep_the_details() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 9,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": None},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    shares = share_usage(usage, [1, 1, 1], [1, 0, 0])
    whole = merge_usage(*shares)
    assert whole == usage | {"prompt_tokens_details": {"cached_tokens": 8}}
    assert shares[0] is not None
    assert shares[0]["prompt_tokens_details"] == {"cached_tokens": 8}
    assert shares[0]["completion_tokens_details"] == {"reasoning_tokens": 2}
