"""Rules of the admission's script, command by command: limits on slots that are learnt from refusals."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.admission_script import Script

SLOTS, STARTS, EITHER = 1, 2, 3
"""What a request was refused by."""
HOLD, DOUBTFUL_HOLD, MOST_HOLD = 10_000, 4_000, 30_500


def fleet(client: redis.Redis, **limits: int) -> Script:
    """One process, 16 slots, and leases that do not end."""
    return Script(client, **{"slots": 16, "lease_ms": 1_000_000, **limits})


def busy(client: redis.Redis, **limits: int) -> tuple[Script, list[str]]:
    """All slots are in use, as many were accepted before, and others wait. The tickets that run."""
    script = fleet(client, **limits)
    first, *held = script.ask(count=script.limits["slots"])
    script.turn(ask=[[script.ticket(), 0]])
    reply = script.answer(first)
    script.turn(ask=[[script.ticket(), 0] for _ in range(50)])
    return script, [*held, *(grant[1] for grant in reply["grants"])]


def remembering(client: redis.Redis, held: int, *, limits: dict[str, int] | None = None, **memory: int) -> Script:
    """After a loss of memory: one process that has so many requests in use brings what was learnt of the slots."""
    script = Script(client, clean=False, **{"slots": 16, "lease_ms": 1_000_000, **(limits or {})})
    tickets = [script.ticket() for _ in range(held)]
    brought = {"most_accepted": 0, "hold_ms": HOLD, "changed_at": 0, "lowered_at": 0, **memory}
    script.join(
        alive=1, members=["aa"], used=0, used_age_ms=0, starts=[], tokens=[],
        leases=[[ticket] for ticket in tickets], learners=[script.now, 0, {"slots": brought}],
    )  # fmt: skip
    script.granted_at |= dict.fromkeys(tickets, script.now)
    return script


def learnt(reply: dict[str, Any]) -> dict[str, int]:
    memory: dict[str, int] = reply["learners"]["slots"]
    return memory


def grow(script: Script, count: int) -> list[tuple[int, int]]:
    """Waits for so many raises of the limit, each as soon as it may come: how long that took, and the limit then."""
    seen = []
    for _ in range(count):
        before, level = script.now, learnt(script.turn())["level"]
        while (now := learnt(reply := script.turn())["level"]) == level:
            script.now = reply["at"]
        seen.append((script.now - before, now))
    return seen


class TestLowered:
    def test_to_what_was_in_use_beside_the_refused_one(self, client: redis.Redis) -> None:
        script = fleet(client)
        ticket, *_ = script.ask(count=5)
        reply = script.later(500).answer(ticket, refused=SLOTS)
        assert (reply["learnt"], reply["limits"]["slots"]) == ({"slots": 4}, 16)
        times = {"changed_at": 0, "lowered_at": 0}
        assert learnt(reply) == {"level": 4, "ceiling": 4, "hold_ms": HOLD, "most_accepted": 0, **times}
        assert script.ask(count=3) == []
        later = learnt(script.later(100).turn())
        assert (later["changed_at"], later["lowered_at"]) == (100, 100)

    def test_not_below_half_where_the_refusal_comes_late(self, client: redis.Redis) -> None:
        script = fleet(client)
        ticket, *_ = script.ask(count=5)
        assert script.later(501).answer(ticket, refused=SLOTS)["learnt"] == {"slots": 8}

    def test_one_is_left(self, client: redis.Redis) -> None:
        for count in (1, 2):
            script = fleet(client)
            tickets = script.ask(count=count)
            assert script.later(1).answer(*tickets, refused=SLOTS)["learnt"] == {"slots": 1}

    def test_slots_that_cool_down_are_not_in_use(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=5)
        script.end(tickets[0], cooldown=1000, verdict=-1)
        assert script.answer(tickets[1], refused=SLOTS)["learnt"] == {"slots": 3}

    def test_by_one_more_for_each_that_was_granted_before(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=16)
        assert script.later(1).answer(*tickets[:3], refused=SLOTS)["learnt"] == {"slots": 13}
        reply = script.later(100).answer(tickets[3], refused=SLOTS)
        assert (learnt(reply)["level"], learnt(reply)["ceiling"], learnt(reply)["changed_at"]) == (12, 12, 100)

    def test_one_that_was_granted_in_the_same_millisecond_counts_anew(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=16)
        assert script.answer(tickets[0], refused=SLOTS)["learnt"] == {"slots": 15}
        script.answer(*tickets[1:11])
        assert script.answer(tickets[11], refused=SLOTS)["learnt"] == {"slots": 4}

    def test_a_second_time_with_the_same_hold(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=16)
        script.answer(tickets[0], refused=SLOTS)
        (ticket,) = script.later(1).answer(*tickets[1:10]).get("grants") or script.ask()
        reply = script.later(1).answer(ticket, refused=SLOTS)
        assert (learnt(reply)["level"], learnt(reply)["hold_ms"], learnt(reply)["lowered_at"]) == (6, HOLD, 0)

    def test_not_by_a_refusal_from_before_the_operator_set_limits(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=3)
        script.set_limits(slots=8)
        (late,) = script.later(1).ask()
        assert "learnt" not in script.answer(*tickets[:2], refused=SLOTS)
        assert script.answer(late, refused=SLOTS)["learnt"] == {"slots": 1}

    def test_one_of_the_millisecond_in_which_they_were_set_counts(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.ask(count=2)
        script.set_limits(slots=8)
        (ticket,) = script.ask()
        assert script.answer(ticket, refused=SLOTS)["learnt"] == {"slots": 2}

    def test_what_the_operator_sets_below_it_counts(self, client: redis.Redis) -> None:
        for slots in (4, 3):
            script = fleet(client)
            ticket, *_ = script.ask(count=5)
            script.answer(ticket, refused=SLOTS)
            script.set_limits(slots=slots)
            reply = script.turn()
            assert "learnt" not in reply
            assert reply["limits"]["slots"] == slots
            script.set_limits(slots=16)
            assert "learnt" not in script.turn(), "it is forgotten"

    def test_batch_keeps_a_slot_of_what_is_left(self, client: redis.Redis) -> None:
        script = fleet(client, reserve_slots=4)
        (first, *_) = script.ask(count=3)
        script.answer(first, refused=SLOTS)
        reply = script.turn()
        assert (reply["learnt"], reply["limits"]["reserve_slots"]) == ({"slots": 2}, 1)


class TestDoubtful:
    """A refusal with no more in use than were accepted before may be random."""

    def test_three_lower_the_limit(self, client: redis.Redis) -> None:
        script, held = busy(client)
        for ticket in held[:2]:
            reply = script.answer(ticket, refused=SLOTS)
            assert (reply["learnt"], reply["learners"]) == ({}, {})
            assert len(script.held()) == 16
        reply = script.later(1).answer(held[2], refused=SLOTS)
        assert learnt(reply) == {
            "level": 11, "ceiling": 11, "hold_ms": DOUBTFUL_HOLD, "most_accepted": 11, "changed_at": 0, "lowered_at": 0,
        }  # fmt: skip

    def test_one_above_what_was_accepted_is_not(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=4)
        script.answer(tickets[0])
        assert "learnt" not in script.turn()
        assert script.answer(tickets[1], refused=SLOTS)["learnt"] == {}, "3 were in use, 4 were accepted"
        script.ask(count=3)
        ticket, *_ = script.held()
        assert script.answer(ticket, refused=SLOTS)["learnt"] == {"slots": 4}

    @pytest.mark.parametrize("accepted", [2, 3])
    def test_three_that_were_accepted_since_are_proof_of_the_contrary(self, client: redis.Redis, accepted: int) -> None:
        script, held = busy(client)
        for ticket in held[:2]:
            script.answer(ticket, refused=SLOTS)
        for _ in range(accepted):
            script.later(1)
            script.end(held.pop(), verdict=-1)
            newest = max(script.held(), key=lambda ticket: script.granted_at[ticket])
            script.answer(newest)
        reply = script.answer(held[2], refused=SLOTS)
        assert reply["learnt"] == ({} if accepted == 3 else {"slots": 11})

    def test_those_that_were_granted_before_are_not(self, client: redis.Redis) -> None:
        script, held = busy(client)
        for ticket in held[:2]:
            script.answer(ticket, refused=SLOTS)
        script.answer(*held[5:9])
        assert script.answer(held[2], refused=SLOTS)["learnt"] == {"slots": 11}

    def test_nor_those_with_fewer_in_use(self, client: redis.Redis) -> None:
        script, held = busy(client)
        script.turn(cancel=list(script.waiting()))
        for ticket in held[:2]:
            script.answer(ticket, refused=SLOTS)
        script.later(1)
        for ticket in script.ask():
            script.end(*held[4:8])
            script.answer(ticket)
        for _ in range(2):
            script.answer(*script.ask())
        assert script.answer(held[2], refused=SLOTS)["learnt"] == {"slots": 11}

    def test_a_refusal_that_follows_starts_their_count_again(self, client: redis.Redis) -> None:
        script, held = busy(client)
        script.answer(held[0], refused=SLOTS)
        for _ in range(2):
            script.later(1)
            for _ in range(2):
                script.end(held.pop(), verdict=-1)
                script.answer(max(script.held(), key=lambda ticket: script.granted_at[ticket]))
            reply = script.answer(held.pop(), refused=SLOTS)
        assert reply["learnt"] == {"slots": 11}


class TestRaised:
    def test_by_one_after_the_hold(self, client: redis.Redis) -> None:
        script = remembering(client, 4, level=4, ceiling=4)
        script.turn(ask=[[script.ticket(), 0] for _ in range(3)])
        assert "at" not in script.later(HOLD - 1001).turn()
        assert script.later(1).turn()["at"] == script.now + 1000
        assert "grants" not in script.later(999).turn()
        reply = script.later(1).turn()
        assert len(reply["grants"]) == 1
        assert "at" not in reply, "nothing comes before an answer"
        assert learnt(reply) == {
            "level": 5, "ceiling": 5, "hold_ms": HOLD, "most_accepted": 0, "probing": 1, "changed_at": 0,
            "lowered_at": HOLD, "logged": 1,
        }  # fmt: skip
        assert "grants" not in script.later(5 * HOLD).turn()

    def test_not_while_nobody_waits(self, client: redis.Redis) -> None:
        script = remembering(client, 4, level=4, ceiling=4)
        assert learnt(script.later(5 * HOLD).turn())["level"] == 4

    def probing(self, client: redis.Redis, **memory: int) -> tuple[Script, str]:
        """Four slots became five, for this ticket, and others wait."""
        script = remembering(client, 4, level=4, ceiling=4, **memory)
        script.turn(ask=[[script.ticket(), 0] for _ in range(30)])
        (grant,) = script.later(memory.get("hold_ms", HOLD)).turn()["grants"]
        return script, grant[1]

    def test_when_that_is_accepted_it_doubles_within_a_second(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        memory = learnt(script.later(300).answer(probe))
        assert "probing" not in memory
        assert (memory["ceiling"], memory["hold_ms"], memory["changed_at"]) == (10, HOLD // 2, 0)
        assert grow(script, 5) == [(200, 6), (167, 7), (143, 8), (125, 9), (112, 10)]
        memory = learnt(script.later(HOLD).turn())
        assert (memory["level"], memory["ceiling"], memory["probing"]) == (10, 10, 1)

    def test_and_again_up_to_what_is_set(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        script.answer(probe)
        grow(script, 5)
        script.later(1).answer(*list(script.held())[:1])
        assert learnt(script.turn())["ceiling"] == 10, "it was granted before"
        newest = max(script.held(), key=lambda ticket: script.granted_at[ticket])
        assert learnt(script.answer(newest))["ceiling"] == 20
        grow(script, 5)
        reply = script.later(100).turn()
        assert len(script.held()) == 16
        assert (reply["learnt"], learnt(reply)["probing"], learnt(reply)["ceiling"]) == ({}, 1, 16)
        reply = script.later(HOLD).turn()
        assert (len(script.held()), "at" in reply) == (16, False)
        (last, *_) = sorted(script.held(), key=lambda ticket: -script.granted_at[ticket])
        script.answer(last)
        assert "learners" not in script.turn(), "all of it is forgotten"

    def test_by_a_sixteenth_at_once_where_turns_are_rare(self, client: redis.Redis) -> None:
        script = remembering(client, 64, level=64, ceiling=128, limits={"slots": 128})
        script.turn(ask=[[script.ticket(), 0] for _ in range(30)])
        assert learnt(script.later(1000).turn())["level"] == 68
        script = remembering(client, 64, level=64, ceiling=66, limits={"slots": 128})
        script.turn(ask=[[script.ticket(), 0] for _ in range(30)])
        assert learnt(script.later(1000).turn())["level"] == 66

    def test_fewer_in_use_are_no_proof(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        script.turn(cancel=list(script.waiting()))
        script.end(*[ticket for ticket in script.held() if ticket != probe][:1])
        assert learnt(script.answer(probe))["probing"] == 1

    def test_nor_is_one_whose_grant_is_not_known(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        assert learnt(script.end(probe))["probing"] == 1

    def test_nor_one_that_was_granted_before_it(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        before = next(ticket for ticket in script.held() if ticket != probe)
        assert learnt(script.answer(before))["probing"] == 1

    def test_the_hold_is_halved_down_to_a_second(self, client: redis.Redis) -> None:
        for hold, halved in ((3001, 1500), (1500, 1000)):
            script, probe = self.probing(client, hold_ms=hold)
            assert learnt(script.answer(probe))["hold_ms"] == halved

    @pytest.mark.parametrize(("hold", "doubled"), [(1000, HOLD), (HOLD, 2 * HOLD), (20_000, MOST_HOLD)])
    def test_when_it_is_refused_the_hold_doubles(self, client: redis.Redis, hold: int, doubled: int) -> None:
        script, probe = self.probing(client, hold_ms=hold)
        memory = learnt(script.later(600).answer(probe, refused=SLOTS))
        assert (memory["level"], memory["ceiling"], memory["hold_ms"]) == (4, 4, doubled)
        assert "probing" not in memory
        script.end(*list(script.held())[:2])
        assert len(script.held()) == 4

    def test_one_of_the_next_quarter_of_a_second_is_a_probe_too(self, client: redis.Redis) -> None:
        for after, hold in ((250, 2 * HOLD), (251, HOLD)):
            script, probe = self.probing(client)
            script.later(after).end(probe)
            newest = max(script.held(), key=lambda ticket: script.granted_at.get(ticket, 0))
            assert script.granted_at[newest] == script.now
            assert learnt(script.answer(newest, refused=SLOTS))["hold_ms"] == hold

    def test_later_ones_may_be_random(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        script.later(251).end(probe)
        for level, hold in ((5, HOLD), (5, HOLD), (4, 2 * HOLD)):
            newest = max(script.held(), key=lambda ticket: script.granted_at.get(ticket, 0))
            reply = script.answer(newest, refused=SLOTS)
            assert (learnt(reply)["level"], learnt(reply)["hold_ms"]) == (level, hold)

    def test_a_first_refusal_that_may_be_random_stops_the_growth(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        assert learnt(script.later(300).answer(probe))["ceiling"] == 10
        memory = learnt(script.answer(next(iter(script.held())), refused=SLOTS))
        assert (memory["level"], memory["ceiling"]) == (5, 5)
        assert learnt(script.later(1000).turn())["level"] == 5

    def test_a_refusal_that_may_be_random_stops_the_growth(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        script.answer(probe)
        grow(script, 2)
        script.later(100).end(*list(script.held())[:1])
        newest = max(script.held(), key=lambda ticket: script.granted_at.get(ticket, 0))
        script.answer(newest)
        assert learnt(script.turn())["ceiling"] == 10
        script.turn(cancel=list(script.waiting()))
        memory = learnt(script.later(300).answer(next(iter(script.held())), refused=SLOTS))
        assert memory["ceiling"] == memory["level"] < 10

    def test_a_probe_above_what_the_operator_sets_since_is_forgotten(self, client: redis.Redis) -> None:
        script, probe = self.probing(client)
        script.set_limits(slots=5)
        assert learnt(script.turn())["level"] == 5, "its answer is awaited"
        script.set_limits(slots=4)
        assert "learners" not in script.turn()
        assert "learners" not in script.answer(probe)


class TestWithoutANumber:
    """The limit grows from a few slots, for as long as that pays."""

    def auto(self, client: redis.Redis, took: int = 100, size: int = 8, **limits: int) -> Script:
        """Eight slots, of which each has answered once in this time: sixteen are in use now."""
        script = fleet(client, auto=1, **limits)
        first = script.ask(count=200)
        assert len(first) == 8
        for ticket in first:
            reply = script.answer(ticket, took=took, size=size)
        memory = learnt(reply)
        assert (memory["level"], memory["ceiling"], memory["hold_ms"]) == (8, 16, HOLD // 2)
        assert [level for _, level in grow(script, 8)] == [*range(9, 17)]
        return script

    def round(self, script: Script, took: int, size: int = 8, count: int = 16) -> dict[str, int]:
        """So many that were granted at this level are answered in this time."""
        script.later(1)
        script.end(*list(script.held()), verdict=-1)
        for ticket in list(script.held())[:count]:
            reply = script.answer(ticket, took=took, size=size)
        return learnt(reply)

    def test_it_begins_with_eight(self, client: redis.Redis) -> None:
        script = fleet(client, auto=1)
        reply = script.join()
        assert (reply["learnt"], reply["limits"]["slots"]) == ({"slots": 8}, 16)
        assert learnt(reply) == {
            "level": 8, "ceiling": 8, "hold_ms": HOLD, "probing": 1, "most_accepted": 0, "changed_at": 0,
        }  # fmt: skip
        assert len(script.ask(count=9)) == 8

    def test_or_with_as_many_as_were_accepted(self, client: redis.Redis) -> None:
        script = fleet(client, slots=12)
        (first, *_) = script.ask(count=12)
        script.end(first)
        script.set_limits(auto=1)
        assert learnt(script.turn())["level"] == 12

    def test_it_ends_at_ten_thousand(self, client: redis.Redis) -> None:
        script = remembering(client, 10_000, limits={"auto": 1}, level=10_000, ceiling=10_000)
        script.turn(ask=[[script.ticket(), 0]])
        assert learnt(script.later(2 * HOLD).turn())["level"] == 10_000

    def test_a_round_of_answers_must_be_complete(self, client: redis.Redis) -> None:
        script = fleet(client, auto=1)
        for ticket in script.ask(count=30)[:7]:
            assert learnt(script.answer(ticket, took=100))["probing"] == 1

    @pytest.mark.parametrize(
        ("took", "level", "ceiling", "hold"),
        [
            (100, 16, 32, HOLD // 4),
            (153, 16, 32, HOLD // 4),  # 16/8 of the slots bring 1.3 of the throughput
            (155, 10, 10, HOLD),
            (199, 8, 8, HOLD),
            (400, 8, 8, HOLD),
        ],
    )
    def test_what_is_added_must_bring_three_tenths_of_its_share(
        self, client: redis.Redis, took: int, level: int, ceiling: int, hold: int
    ) -> None:
        memory = self.round(self.auto(client), took)
        assert (memory["level"], memory["ceiling"], memory["hold_ms"]) == (level, ceiling, hold)
        assert "probing" not in memory

    def test_all_milliseconds_of_a_round_count(self, client: redis.Redis) -> None:
        for last, level in ((21, 16), (22, 8)):
            script = self.auto(client, 10)
            script.later(1).end(*list(script.held()), verdict=-1)
            for took, ticket in zip((*[15] * 15, last), list(script.held())[:16], strict=True):
                reply = script.answer(ticket, took=took, size=8)
            assert (learnt(reply)["level"] == 16) == (level == 16)

    def test_after_slots_that_did_not_pay_the_next_try_is_half_as_many_more(self, client: redis.Redis) -> None:
        script = self.auto(client)
        self.round(script, 400)
        script.end(*list(script.held())[8:], verdict=-1)
        script.end(*list(script.held()), verdict=-1)
        assert len(script.held()) == 8
        assert "grants" not in script.later(HOLD - 1).turn()
        memory = learnt(script.later(1).turn())
        assert (memory["level"], memory["ceiling"], memory["probing"]) == (9, 12, 1)
        assert [level for _, level in grow(script, 3)] == [10, 11, 12]
        memory = self.round(script, 100, count=12)
        assert (memory["level"], memory["ceiling"]) == (12, 24)

    def test_a_size_is_compared_with_its_like(self, client: redis.Redis) -> None:
        """Sizes are alike from one power of two to the next."""
        script = self.auto(client, size=8)
        memory = self.round(script, 400, size=16)
        assert (memory["level"], memory["ceiling"]) == (16, 32)
        script = self.auto(client, size=8)
        assert self.round(script, 400, size=15)["level"] == 8

    def test_of_a_mixed_round_only_what_both_have_is_compared(self, client: redis.Redis) -> None:
        script = self.auto(client, size=8)
        script.later(1).end(*list(script.held()), verdict=-1)
        for place, ticket in enumerate(list(script.held())[:16]):
            reply = script.answer(ticket, took=900 if place % 2 else 100, size=64 if place % 2 else 8)
        assert learnt(reply)["level"] == 16

    def test_the_comparison_goes_on_from_the_last_round_that_paid(self, client: redis.Redis) -> None:
        script = self.auto(client)
        self.round(script, 150)
        grow(script, 16)
        assert len(script.held()) == 32
        memory = self.round(script, 150 * 3 // 2, count=32)
        assert (memory["level"], memory["ceiling"]) == (32, 64)

    def test_lower_slots_are_compared_with_from_then_on(self, client: redis.Redis) -> None:
        script = self.auto(client)
        self.round(script, 400)
        script.end(*list(script.held())[8:], verdict=-1)
        self.round(script, 400, count=8)
        script.later(HOLD).turn()
        grow(script, 3)
        assert self.round(script, 400, count=12)["level"] == 12

    def test_the_latest_round_of_a_level_is_compared(self, client: redis.Redis) -> None:
        script = self.auto(client)
        self.round(script, 400)
        script.end(*list(script.held())[8:], verdict=-1)
        for took in (400, 800):
            assert self.round(script, took, count=8)["level"] == 8
        script.later(HOLD).turn()
        grow(script, 3)
        assert self.round(script, 900, count=12)["level"] == 12

    def test_one_slot_more_is_too_few_to_be_compared_with(self, client: redis.Redis) -> None:
        script = fleet(client, auto=1)
        refused, *_ = script.ask(count=200)
        assert learnt(script.answer(refused, refused=SLOTS))["level"] == 7
        assert "probing" not in self.round(script, 100, count=7)
        assert learnt(script.later(2 * HOLD).turn())["level"] == 8
        assert self.round(script, 200, count=8)["ceiling"] == 16
        grow(script, 8)
        assert self.round(script, 180)["level"] == 8, "sixteen bring too little, compared with seven"
