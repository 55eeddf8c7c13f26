"""Leases in terms: what they share, and what must stay each one's own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_worker.admission.lease import Lease, Term
from brimful_worker.admission.lease_table import LeaseTable
from brimful_worker.admission.policy import GATHER_MOST_S, gather_s
from brimful_worker.liveness.watchdog import Watchdog

LEASE_S = 6.75


def lease(name: str, granted: float) -> Lease:
    return Lease(name, 0.0, granted + 1, Term(granted, granted + LEASE_S), Watchdog())


def renew(held: LeaseTable, before: float, sent: float) -> list[str]:
    due = held.due(before)
    told = held.told(due)
    held.renew(due, sent, sent + LEASE_S)
    return told


def test_what_was_granted_together_is_renewed_together_and_told_by_name() -> None:
    held = LeaseTable()
    early, late = [lease(f"e{i}", 1.0) for i in range(3)], [lease(f"l{i}", 2.0) for i in range(2)]
    for one in early + late:
        held.add(one)
    assert early[0].term is early[2].term is not late[0].term
    assert renew(held, 1.5, 10.0) == ["e0", "e1", "e2"]
    assert [one.deadline for one in early + late] == [10 + LEASE_S] * 3 + [2 + LEASE_S] * 2
    assert renew(held, 20.0, 21.0) == ["l0", "l1", "e0", "e1", "e2"]
    assert len({id(one.term) for one in early + late}) == 1


def test_a_lease_that_leaves_keeps_its_own_end_while_the_others_go_on() -> None:
    held = LeaseTable()
    gone, stays = lease("gone", 1.0), lease("stays", 1.0)
    held.add(gone)
    held.add(stays)
    due = held.due(1.0)
    held.told(due)
    held.pop("gone")
    held.renew(due, 5.0, 5.0 + LEASE_S)
    assert gone.deadline == 1.0 + LEASE_S, "the watchdog shuts it then"
    assert stays.deadline == 5.0 + LEASE_S


def test_who_comes_while_a_turn_is_under_way_is_not_renewed_by_it() -> None:
    held = LeaseTable()
    held.add(lease("told", 1.0))
    due = held.due(1.0)
    held.told(due)
    late = lease("late", 1.0)
    held.add(late)
    held.renew(due, 5.0, 5.0 + LEASE_S)
    assert late.deadline == 1.0 + LEASE_S
    assert held.ended(1.0 + LEASE_S) == [late]


def test_terms_that_emptied_while_a_turn_was_under_way() -> None:
    held = LeaseTable()
    held.add(lease("a", 1.0))
    due = held.due(1.0)
    held.told(due)
    held.pop("a")
    held.renew(due, 5.0, 5.0 + LEASE_S)
    assert held.oldest is None
    assert held.pop("a") is None
    assert not held


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 3)),
            st.tuples(st.just("pop"), st.integers(0, 40)),
            st.tuples(st.just("renew"), st.integers(0, 5)),
            st.tuples(st.just("shorten"), st.integers(1, 6)),
        ),
        max_size=60,
    )
)
def test_against_a_plain_table(steps: list[tuple[str, int]]) -> None:
    """Waiter → (renewed, deadline); grants may come up to three seconds late."""
    held, table, leases = LeaseTable(), dict[str, tuple[float, float]](), dict[str, Lease]()
    now, number = 100.0, 0
    for what, argument in steps:
        now += 1
        if what == "add":
            name, number = f"t{number}", number + 1
            granted = now - argument
            leases[name] = lease(name, granted)
            held.add(leases[name])
            table[name] = granted, granted + LEASE_S
        elif what == "pop":
            name = f"t{argument}"
            assert (held.pop(name) is not None) == (table.pop(name, None) is not None)
        elif what == "renew":
            due = {name for name, (renewed, _) in table.items() if renewed <= now - argument}
            assert set(renew(held, now - argument, now)) == due
            table |= dict.fromkeys(due, (now, now + LEASE_S))
        else:
            held.shorten(argument)
            table = {name: (renewed, min(end, renewed + argument)) for name, (renewed, end) in table.items()}
        assert {one.id: (one.term.renewed, one.deadline) for one in held} == table
        assert {one.id for one in held.ended(now)} == {name for name, (_, end) in table.items() if end <= now}
        first = held.oldest
        assert (first.renewed if first else None) == min((renewed for renewed, _ in table.values()), default=None)


@pytest.mark.parametrize(("held", "seconds"), [(0, 0.0), (16, 0.0), (99, 0.0), (500, 0.005), (5000, GATHER_MOST_S)])
def test_only_who_holds_much_waits_for_company(held: int, seconds: float) -> None:
    assert gather_s(held) == pytest.approx(seconds)
