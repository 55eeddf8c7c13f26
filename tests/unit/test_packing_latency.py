"""How long requests take, learnt from those that ended."""

from __future__ import annotations

import pytest

from brimful.packing.latency import Latency, RequestTime


@pytest.mark.parametrize(
    ("time", "seconds", "most", "prompts"),
    [
        (RequestTime(1.0, 0.5), 3.0, 99, 4),
        (RequestTime(1.0, 0.5), 2.99, 99, 3),
        (RequestTime(1.0, 0.5), 3.0, 2, 2),
        (RequestTime(1.0, 0.5), 1.2, 9, 0),
        (RequestTime(1.0, 0.5), 0.5, 9, 0),
        (RequestTime(1.0, 0.0), 1.0, 9, 9),
        (RequestTime(1.0, 0.0), 0.9, 9, 0),
        (RequestTime(0.0, 0.1), 0.3, 9, 3),
    ],
)
def test_prompts_that_take_no_longer(time: RequestTime, seconds: float, most: int, prompts: int) -> None:
    assert time.prompts_within(seconds, most) == prompts


def test_seconds_of_a_request() -> None:
    assert RequestTime(1.0, 0.5).seconds(4) == 3.0


def test_before_the_first_sample_each_token_takes_ten_milliseconds() -> None:
    latency = Latency()
    assert not latency.seen
    assert not latency.known
    assert latency.request_time(100, 3) == RequestTime(0.0, pytest.approx(3.0))  # type: ignore[arg-type]
    assert latency.request_time(None, 1) == RequestTime(0.0, pytest.approx(2.56))  # type: ignore[arg-type]


def test_until_three_sizes_were_seen_time_grows_with_the_size() -> None:
    latency = Latency()
    latency.add(10, 1, 1.0)
    assert latency.seen
    assert latency.request_time(10, 2).prompt_s == pytest.approx(2.0)
    latency.add(10, 1, 3.0)
    latency.add(10, 3, 6.0)
    assert not latency.known
    assert latency.largest == 30
    assert latency.request_time(20, 1) == RequestTime(0.0, pytest.approx(4.0))  # type: ignore[arg-type]
    latency.add(None, 1, 9.0)
    assert latency.largest == 256
    assert latency.known


@pytest.mark.parametrize("parts", [(0.5, 0.01, 0.002), (0.0, 0.02, 0.0), (1.0, 0.0, 0.004), (0.0, 0.0, 0.01)])
def test_what_was_seen_is_predicted(parts: tuple[float, float, float]) -> None:
    fixed, token, choice_token = parts
    latency = Latency()

    def seconds(tokens: int, choices: int) -> float:
        return fixed + token * tokens + choice_token * tokens * choices

    for tokens in (16, 64, 256):
        for choices in (1, 2, 4, 8):
            latency.add(tokens, choices, seconds(tokens, choices))
    time = latency.request_time(128, 2)
    for prompts in (1, 3, 20):
        assert time.seconds(prompts) == pytest.approx(seconds(128, 2 * prompts), rel=0.02)


def test_old_samples_are_forgotten() -> None:
    latency = Latency()
    for count in (1, 2, 4, 8) * 64:
        latency.add(10, count, 0.1 * count)
    for count in (1, 2, 4, 8) * 64:
        latency.add(10, count, 1.0 * count)
    assert latency.request_time(10, 1).seconds(5) == pytest.approx(5.0, rel=0.01)


def test_a_fit_follows_enough_new_samples() -> None:
    latency = Latency()
    for count in (1, 2, 4, 8) * 10:
        latency.add(10, count, 0.1 * count)
    before = latency.request_time(10, 1)
    latency.add(10, 1, 5.0)
    assert latency.request_time(10, 1) is not before
    assert latency.request_time(10, 1) == before, "one of forty teaches too little"
    for count in (1, 2, 4, 8) * 10:
        latency.add(10, count, 0.3 * count)
    assert latency.request_time(10, 1) != before


def test_sizes_that_time_out_often_are_avoided() -> None:
    latency = Latency()
    for _ in range(6):
        latency.add(10, 1, 0.1)
    latency.timed_out(10, 8)
    latency.timed_out(10, 8)
    assert latency.ceiling is None, "two of eight are rare"
    latency.timed_out(10, 8)
    assert latency.ceiling == 40
    latency.timed_out(10, 100)
    assert latency.ceiling == 20, "what is larger is too large as well"
    for _ in range(2):
        latency.add(10, 1, 0.1)
    latency.timed_out(None, 1)
    assert latency.ceiling == 10
    latency.add(10, 1, 0.1)
    latency.add(10, 1, 0.1)
    latency.add(10, 1, 0.1)
    latency.timed_out(10, 1)
    assert latency.ceiling == 10, "one of four"
