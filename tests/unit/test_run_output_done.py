"""Which rollouts of a line the output holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.request import Request
from brimful.run.output.done_index import DoneIndex
from support.runs import PROFILE

FOUR = Request.parse({"prompt": ["a", "b"], "n": 2, "max_tokens": 8}, PROFILE)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 1), st.integers(0, 2)), max_size=80))
def test_each_rollout_is_counted_once(pairs: list[tuple[int, int, int]]) -> None:
    done, seen = DoneIndex(), set()
    for pair in pairs:
        assert done.add(*pair, of=6) is (pair not in seen)
        seen.add(pair)
    complete = {line for line in range(1, 21) if sum(pair[0] == line for pair in seen) == 6}
    assert {line for line in range(1, 21) if done.complete(line)} == complete
    assert done.lines == len(complete)
    assert all(done.has(*pair) for pair in seen)


def test_what_is_there_of_a_line() -> None:
    done = DoneIndex()
    assert (done.started(1), done.count(1, FOUR), done.missing(1, FOUR)) == (False, 0, None)
    assert done.add(1, 0, 1, of=4)
    assert (done.started(1), done.complete(1), done.count(1, FOUR)) == (True, False, 1)
    assert done.missing(1, FOUR) == ((0, 0), (1, 0), (1, 1))
    assert (done.has(1, 0, 1), done.has(1, 0, 0), done.has(2, 0, 1)) == (True, False, False)
    assert [done.add(1, prompt, choice, of=4) for prompt, choice in ((0, 0), (1, 0), (1, 1))] == [True] * 3
    assert (done.started(1), done.complete(1), done.count(1, FOUR)) == (True, True, 4)
    assert done.missing(1, FOUR) == ()
    assert done.has(1, 1, 1)
    assert not done.add(1, 1, 1, of=4)


def test_a_line_of_one_rollout_is_finished_with_it() -> None:
    done = DoneIndex()
    assert done.add(1, 0, 0, of=1)
    assert not done.add(1, 0, 0, of=1)
    assert done.add(2, 0, 0, of=2)
    assert (done.complete(1), done.complete(2), done.lines) == (True, False, 1)


def test_a_line_whose_records_do_not_say_how_many_it_has_is_finished_by_its_request() -> None:
    done = DoneIndex()
    for prompt, choice in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert not done.complete(1)
        done.add(1, prompt, choice, of=1 << 60)
    assert done.missing(1, FOUR) == ()
    assert done.complete(1)
