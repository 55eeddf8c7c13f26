"""Rules of the admission's script, command by command: who is next, across queues and processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from support.admission_script import Script, granted

WINDOW_MS = 5500
"""With the guard."""
PARKED = 10**15
"""Added to the scores of tickets whose process is away."""


@pytest.fixture
def full(client: redis.Redis) -> Iterator[Script]:
    """One slot, which ``aa`` holds; ``aa`` and ``bb`` listen."""
    script = Script(client, slots=1, lease_ms=100_000)
    script.listen("aa", "bb", "cc")
    script.join("aa")
    script.join("bb")
    script.join("cc")
    for process in ("aa", "bb"):  # they confirm that they know all
        script.turn(process, members=99)
    yield script
    script.close()


def order(script: Script, held: str, count: int) -> list[str]:
    """Who gets the slot, one after the other. The process that holds it ends it, and takes part in nothing else."""
    seen = []
    for _ in range(count):
        script.end(held)
        (held,) = script.held()
        seen.append(held)
    return seen


class TestOrder:
    def test_first_come_first_served_across_processes(self, full: Script) -> None:
        (held,) = full.ask("aa")
        expected = []
        for process, waited in (("aa", 0), ("bb", 500), ("aa", 900), ("bb", 100)):
            ticket = full.ticket(process)
            full.turn(process, ask=[[ticket, waited]])
            expected.append((-waited, ticket))
        assert order(full, held, 4) == [ticket for _, ticket in sorted(expected)]

    def test_asking_again_keeps_the_place(self, full: Script) -> None:
        full.ask("aa")
        ticket = full.ticket()
        full.turn(ask=[[ticket, 100]])
        full.later(50).turn(ask=[[ticket, 0]])
        assert full.waiting() == {ticket: full.now - 150}

    def test_interactive_goes_first(self, full: Script) -> None:
        (held,) = full.ask("aa")
        batch, interactive = full.ticket(), full.ticket(queue="i")
        full.turn(ask=[[batch, 900], [interactive, 0]])
        assert order(full, held, 2) == [interactive, batch]

    def test_one_that_starved_gets_every_fourth_turn(self, full: Script) -> None:
        (held,) = full.ask("aa")
        batch = [full.ticket() for _ in range(3)]
        full.turn(ask=[[ticket, 3000] for ticket in batch])
        interactive = [full.ticket(queue="i") for _ in range(9)]
        full.turn(ask=[[ticket, 0] for ticket in interactive])
        queues = "".join(ticket.split(".")[1] for ticket in order(full, held, 12))
        assert queues == "iiibiiibiiib"

    def test_one_that_has_not_waited_so_long_does_not(self, full: Script) -> None:
        (held,) = full.ask("aa")
        full.turn(ask=[[full.ticket(), 2999]])
        full.turn(ask=[[full.ticket(queue="i"), 0] for _ in range(6)])
        queues = "".join(ticket.split(".")[1] for ticket in order(full, held, 7))
        assert queues == "iiiiiib"

    def test_turns_before_it_starved_do_not_count(self, full: Script) -> None:
        (held,) = full.ask("aa")
        full.turn(ask=[[full.ticket(), 2999]])
        full.turn(ask=[[full.ticket(queue="i"), 0] for _ in range(9)])
        first = order(full, held, 4)
        full.later(1)
        queues = "".join(ticket.split(".")[1] for ticket in order(full, first[-1], 5))
        assert queues == "iiibi"

    def test_a_batch_grant_starts_the_turns_again(self, full: Script) -> None:
        (held,) = full.ask("aa")
        full.turn(ask=[[full.ticket(), 3000], [full.ticket(), 3000]])
        full.turn(ask=[[full.ticket(queue="i"), 0] for _ in range(2)])
        first = order(full, held, 3)
        assert [ticket.split(".")[1] for ticket in first] == ["i", "i", "b"], "none interactive was left"
        full.turn(ask=[[full.ticket(queue="i"), 0] for _ in range(4)])
        assert "".join(ticket.split(".")[1] for ticket in order(full, first[-1], 5)) == "iiibi"

    def test_starts_without_a_slot_go_first(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, starts=2)
        script.ask(count=2)
        batch, start_only = script.ticket(), script.ticket(queue="s")
        script.turn(ask=[[batch, 900], [start_only, 0]])
        assert script.later(5500).look() == [start_only, batch]
        assert start_only not in script.held()
        assert start_only in script.starts()

    def test_nothing_overtakes_a_start_that_must_wait(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, starts=2)
        script.ask(count=1)
        first = script.now
        script.later(100).ask(count=1)
        reply = script.turn(ask=[[script.ticket(queue="s"), 0], [script.ticket(queue="i"), 0]])
        assert (granted(reply), reply["at"]) == ([], first + 5500)

    def test_a_start_needs_no_slot(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        script.ask()
        assert len(script.ask(queue="s", count=3)) == 3

    def test_a_cancelled_one_leaves_its_queue(self, full: Script) -> None:
        full.ask("aa")
        tickets = {name: full.ticket(queue=name[0]) for name in ("batch", "interactive")}
        full.turn(ask=[[ticket, 0] for ticket in tickets.values()])
        full.turn(cancel=list(tickets.values()))
        assert full.waiting("batch") == full.waiting("interactive") == {}


class TestSpareSlots:
    """The reply's ``idle`` and ``full_until``: a process may send its releases later."""

    def test_of_nobody_who_waits_and_half_of_the_slots(self, client: redis.Redis) -> None:
        script = Script(client, slots=4)
        one, two = script.ask(count=2)
        assert script.turn()["idle"] is True
        (three,) = script.ask()
        assert "idle" not in script.turn()
        script.ask(count=2)
        assert "idle" not in script.turn()
        script.end(one, two, three)
        assert script.turn()["idle"] is True

    @pytest.mark.parametrize("slots", [3, 8], ids=["all slots taken", "free slots"])
    def test_of_a_full_window(self, client: redis.Redis, slots: int) -> None:
        script = Script(client, slots=slots, starts=3)
        assert "full_until" not in script.turn()
        script.ask(count=3)
        until = script.now + WINDOW_MS
        assert script.turn()["full_until"] == until
        script.later(100).ask()
        assert script.turn()["full_until"] == until

    def test_of_one_that_the_same_command_has_filled(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, starts=4)
        reply = script.turn(ask=[[script.ticket(), 0] for _ in range(5)])
        assert (len(granted(reply)), reply["full_until"]) == (4, script.now + WINDOW_MS)

    def test_starts_that_leave_the_window_nearly_together_are_granted_together(self, client: redis.Redis) -> None:
        script = Script(client, slots=8, starts=4)
        began = script.now
        for after in (0, 4, 7, 30):  # a window of 5.5 s: within 27 ms
            script.now = began + after
            script.end(*script.ask())
        script.now = began + 40
        first = script.ticket()
        assert script.turn(ask=[[first, 0]])["at"] == began + WINDOW_MS  # a single one does not wait for others
        reply = script.turn(ask=[[script.ticket(), 0] for _ in range(3)])
        assert reply["at"] == reply["full_until"] == began + 7 + WINDOW_MS
        script.now = reply["at"]
        assert len(script.look()) == 3
        assert script.turn()["at"] == began + 30 + WINDOW_MS


class TestReserve:
    def test_batch_leaves_slots_to_interactive(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, reserve_slots=1)
        held = script.ask(count=4)
        assert len(held) == 3
        assert len(script.ask(queue="i", count=2)) == 1
        assert script.end(held[0]).get("grants") is not None

    def test_slots_of_interactive_do_not_count_against_batch(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, reserve_slots=2)
        assert len(script.ask(queue="i", count=2)) == 2
        assert len(script.ask(count=3)) == 2

    def test_batch_leaves_starts_to_interactive(self, client: redis.Redis) -> None:
        script = Script(client, slots=9, starts=4, reserve_starts=1)
        assert len(script.ask(count=4)) == 3
        assert len(script.ask(queue="i", count=2)) == 1
        assert len(script.later(5500).look()) == 2

    def test_starts_of_the_guard_count(self, client: redis.Redis) -> None:
        script = Script(client, slots=9, starts=4, reserve_starts=1)
        first = script.now
        script.ask(count=3)
        script.now = first + 5499
        assert script.ask() == []
        assert len(script.later(1).look()) == 1

    def test_one_that_starved_waits_for_room_beside_the_reserve(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, reserve_slots=1)
        script.ask(count=3)
        script.turn(ask=[[script.ticket(), 3000]])
        for _ in range(6):
            (ticket,) = script.ask(queue="i")
            script.end(ticket)
        assert len(script.waiting()) == 1

    def test_it_takes_the_last_room_there_is(self, client: redis.Redis) -> None:
        script = Script(client, slots=3, reserve_slots=1)
        script.ask(count=1)
        held = script.ask(queue="i", count=2)
        script.turn(ask=[[script.ticket(), 3000]])
        queues = ""
        for _ in range(4):
            script.turn(ask=[[script.ticket(queue="i"), 0]])
            (ticket,) = granted(script.end(held.pop()))
            held.append(ticket)
            queues += ticket.split(".")[1]
        assert queues == "iiib"

    def test_and_for_starts(self, client: redis.Redis) -> None:
        script = Script(client, slots=9, starts=9, reserve_starts=6)
        script.ask(count=3)
        script.turn(ask=[[script.ticket(), 3000]])
        assert len(script.ask(queue="i", count=6)) == 6
        assert len(script.waiting()) == 1

    def test_a_slot_of_batch_that_cools_down_counts(self, client: redis.Redis) -> None:
        script = Script(client, slots=4, reserve_slots=2)
        first, _ = script.ask(count=2)
        script.end(first, cooldown=1000)
        assert script.ask() == []
        assert len(script.later(1000).look()) == 1


class TestAway:
    def test_waiters_of_a_process_that_does_not_listen_are_passed_over(self, full: Script) -> None:
        (held,) = full.ask("aa")
        away, here = full.ticket("bb"), full.ticket("aa")
        full.turn("bb", ask=[[away, 500]])
        full.turn("aa", ask=[[here, 0]])
        full.deafen("bb")
        assert order(full, held, 1) == [here]
        assert {ticket: score % PARKED for ticket, score in full.waiting().items()} == {away: full.now - 500}

    def test_they_are_back_in_their_place_when_it_is(self, full: Script) -> None:
        (held,) = full.ask("aa")
        away = [full.ticket("bb") for _ in range(3)]
        here = full.ticket("aa")
        full.turn("bb", ask=[[ticket, 500 + i] for i, ticket in enumerate(away)])
        full.turn("bb", ask=[[full.ticket("bb", queue="i"), 0]])
        full.turn("aa", ask=[[here, 100], [full.ticket(), 0]])
        full.deafen("bb")
        (second,) = order(full, held, 1)
        assert second == here
        full.listen("bb")
        full.turn("bb")
        assert [ticket.split(".")[0] for ticket in full.waiting("interactive")] == ["bb"]
        assert all(score < PARKED for score in (*full.waiting().values(), *full.waiting("interactive").values()))
        assert full.client.hget(full.keys["state"], "parked") is None, "later turns look for nobody"
        full.end(second)
        assert [ticket.split(".")[1] for ticket in full.held()] == ["i"]

    def test_more_than_one_chunk_is_put_aside(self, full: Script) -> None:
        (held,) = full.ask("aa")
        full.turn("bb", ask=[[full.ticket("bb"), 500] for _ in range(4500)])
        here = full.ticket("aa")
        full.turn("aa", ask=[[here, 0]])
        full.deafen("bb")
        assert order(full, held, 1) == [here]
        assert sum(score >= PARKED for score in full.waiting().values()) == 4500
        full.listen("bb")
        full.turn("bb")
        assert sum(score >= PARKED for score in full.waiting().values()) == 0
        assert len(full.waiting()) == 4500

    def test_far_behind_others_that_have_their_fill(self, full: Script) -> None:
        """A process that must confirm its grants first keeps its place, and those behind it are served."""
        full.set_limits(slots=40)
        full.turn("aa")
        full.turn("bb", ask=[[full.ticket("bb"), 500 + i] for i in range(40)], seen=10**6)
        full.turn("bb", ask=[])
        assert len(full.held()) == 40

    def test_a_process_that_was_removed_takes_its_waiters_along(self, full: Script) -> None:
        full.ask("aa")
        for queue in "isb":
            full.turn("bb", ask=[[full.ticket("bb", queue=queue), 0]], pause=[10**6, "no start"])
        full.turn("bb", leave=True)
        assert full.waiting("batch") == full.waiting("interactive") == full.waiting("start_only") == {}

    def test_also_those_that_were_put_aside(self, full: Script) -> None:
        (held,) = full.ask("aa")
        full.turn("bb", ask=[[full.ticket("bb"), 500]])
        full.turn("aa", ask=[[full.ticket(), 0]])
        full.deafen("bb")
        full.end(held)
        full.later(200_000).turn("aa")
        assert full.waiting() == {}
        assert full.client.hget(full.keys["state"], "parked") is None, "later turns look for nobody"
