"""A request's usage, shared among the lines that it carried."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brimful.packing.usage import merge_usage, share_usage


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 1000), st.integers(0, 1000))
def test_shares_of_usage_add_up(weights: list[int], prompt: int, completion: int) -> None:
    shares = share_usage({"prompt_tokens": prompt, "completion_tokens": completion}, weights)
    assert sum(share["prompt_tokens"] for share in shares if share) == prompt
    assert sum(share["completion_tokens"] for share in shares if share) == completion


_counts = st.dictionaries(st.sampled_from(["cached_tokens", "audio_tokens"]), st.none() | st.integers(-1, 9))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": st.none() | st.integers(-1, 50),
            "completion_tokens": st.none() | st.integers(-1, 50),
            "total_tokens": st.integers(0, 99),
            "prompt_tokens_details": _counts,
            "completion_tokens_details": _counts,
            "estimated": st.booleans(),
        },
    )
)
def test_the_only_share_is_what_shares_of_several_would_add_up_to(usage: dict[str, Any]) -> None:
    [whole] = share_usage(usage, [3], [1])
    first, second = share_usage(usage, [3, 0], [1, 0])
    assert whole == first
    assert (second is None) == (first is None)


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
