"""Rules of the admission's script, command by command: limits on starts that are learnt, or stated by the provider.

Also which limit a refusal is taken for, and when what was learnt is published and logged.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import redis

from support.admission_script import Script, granted

SLOTS, STARTS, EITHER = 1, 2, 3
"""What a request was refused by."""
WINDOW, GUARD = 5000, 500
HOLD, NAMED_HOLD, MOST_HOLD = 10_000, 20_000, 61_000
STATED_MOST = 15 * 60 * 1000


def fleet(client: redis.Redis, **limits: int) -> Script:
    """One process, more slots than it needs, and leases that do not end."""
    return Script(client, **{"slots": 100, "lease_ms": 10_000_000, **limits})


def remembering(client: redis.Redis, learners: dict[str, Any], **limits: int) -> Script:
    """After a loss of memory: one process brings what was learnt."""
    script = Script(client, clean=False, **{"slots": 100, "lease_ms": 10_000_000, **limits})
    script.join(
        alive=1, members=["aa"], used=0, used_age_ms=0, starts=[], tokens=[], learners=[script.now, 0, learners]
    )
    return script


def learnt(reply: dict[str, Any], kind: str = "starts") -> dict[str, int]:
    memory: dict[str, int] = reply["learners"][kind]
    return memory


class TestRefused:
    """Any refusal of a start may be random: three of them lower the limit."""

    @pytest.mark.parametrize(
        ("starts", "used", "level"), [(20, 10, 15), (20, 19, 16), (20, 20, 17), (40, 40, 37), (0, 10, 7), (0, 2, 1)]
    )
    def test_to_what_was_accepted_but_by_a_quarter_at_most(
        self, client: redis.Redis, starts: int, used: int, level: int
    ) -> None:
        script = fleet(client, starts=starts)
        tickets = script.ask(count=used)
        tickets += script.later(WINDOW).ask(count=3 - used) if used < 3 else []
        for ticket in tickets[:2]:
            assert script.answer(ticket, refused=STARTS)["learnt"] == {}
        reply = script.answer(tickets[2], refused=STARTS)
        assert (reply["learnt"], reply["limits"]["starts"]) == ({"starts": level}, starts)
        assert learnt(reply) == {
            "level": level, "ceiling": level, "hold_ms": NAMED_HOLD, "most_accepted": 0, "changed_at": 0,
            "lowered_at": 0,
        }  # fmt: skip

    @pytest.mark.parametrize("starts", [0, 30])
    def test_starts_that_left_the_window_are_not_in_use(self, client: redis.Redis, starts: int) -> None:
        """Those of the guard are not either: the provider does not count them."""
        script = fleet(client, starts=starts)
        script.ask(count=10)
        tickets = script.later(WINDOW).ask(count=8)
        for ticket in tickets[:2]:
            script.answer(ticket, refused=STARTS)
        assert script.answer(tickets[2], refused=STARTS)["learnt"] == {"starts": 22 if starts else 5}

    @pytest.mark.parametrize("place", [0, 31])
    def test_without_a_limit_those_of_all_slices_of_time_count(self, client: redis.Redis, place: int) -> None:
        """They are counted by the slice, of which there are 32 of 1936 ms."""
        script = fleet(client)
        script.now = (32 * 20 + place) * 1936
        assert script.answer(*script.ask(count=10)[:3], refused=STARTS)["learnt"] == {"starts": 7}

    def test_those_of_one_turn_count_each(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=10)
        assert script.answer(*tickets[:3], refused=STARTS)["learnt"] == {"starts": 7}

    def test_two_half_a_window_apart_show_the_whole_window(self, client: redis.Redis) -> None:
        for apart, level in ((WINDOW // 2 - 1, None), (WINDOW // 2, 9)):
            script = fleet(client, starts=20)
            first, *_ = script.ask(count=10)
            script.answer(first, refused=STARTS)
            (later,) = script.later(apart).ask()
            reply = script.answer(later, refused=STARTS)
            assert reply["learnt"].get("starts") == level

    def test_they_are_forgotten_after_three_windows(self, client: redis.Redis) -> None:
        for apart, lowered in ((3 * WINDOW, True), (3 * WINDOW + 1, False)):
            script = fleet(client, starts=20)
            script.answer(*script.ask(), refused=STARTS)
            reply = script.answer(*script.later(apart).ask(), refused=STARTS)
            assert ("starts" in reply["learnt"]) == lowered

    @pytest.mark.parametrize(("later", "level"), [(WINDOW - 1, 18), (WINDOW, 8)])
    def test_one_that_was_refused_is_not_counted_while_it_is_in_the_window(
        self, client: redis.Redis, later: int, level: int
    ) -> None:
        script = fleet(client, starts=40)
        script.answer(*script.ask(count=11)[:1], refused=STARTS)
        tickets = script.later(later).ask(count=9)
        assert script.answer(tickets[0], refused=STARTS)["learnt"] == {"starts": level}

    def test_acceptances_end_the_doubt_about_refusals_that_name_no_limit(self, client: redis.Redis) -> None:
        for accepted, in_doubt in ((2, True), (3, False)):
            script = fleet(client, starts=20)
            first, second, third, *_ = script.ask(count=17)
            script.answer(first, refused=EITHER)
            script.answer(second, refused=EITHER)
            later = script.later(1).ask(count=3)
            for ticket in later[:accepted]:
                script.answer(ticket)
            reply = script.answer(third, refused=EITHER)
            assert ("starts" in reply["learnt"]) == in_doubt

    def test_one_that_was_granted_before_the_limit_was_lowered_takes_one_at_most(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=10)
        script.later(1).answer(*tickets[:3], refused=STARTS)
        for level, ticket in zip((6, 5, 4), tickets[3:6], strict=True):
            reply = script.later(100).answer(ticket, refused=STARTS)
            assert reply["learnt"] == {"starts": level}
        assert (learnt(reply)["ceiling"], learnt(reply)["lowered_at"], learnt(reply)["changed_at"]) == (4, 300, 300)
        assert script.answer(*tickets[6:], refused=STARTS)["learnt"] == {"starts": 1}

    def test_without_a_limit_that_is_set_what_was_learnt_may_be_lowered_to_whatever_was_accepted(
        self, client: redis.Redis
    ) -> None:
        memory = {"level": 20, "ceiling": 20, "hold_ms": HOLD, "changed_at": 0, "lowered_at": 0, "most_accepted": 0}
        for starts, level in ((0, 10), (100, 15)):
            script = remembering(client, {"starts": memory}, starts=starts)
            tickets = script.later(WINDOW + GUARD).ask(count=13)
            for ticket in tickets[:3]:
                reply = script.answer(ticket, refused=STARTS)
            assert reply["learnt"] == {"starts": level}

    def test_of_the_refused_ones_the_latest_64_are_remembered(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=100)
        assert script.later(1).answer(*tickets[:70], refused=STARTS)["learnt"] == {"starts": 36}

    @pytest.mark.parametrize(("first", "lowered"), [(44, False), (45, True)])
    def test_refusals_that_name_no_limit_are_by_this_one_where_as_much_of_the_window_was_used(
        self, client: redis.Redis, first: int, lowered: bool
    ) -> None:
        script = fleet(client, starts=100)
        early = script.ask(count=first)
        late = script.later(100).ask(count=50 - first)
        script.answer(late.pop())
        script.end(*early[1:10], verdict=-1)
        script.answer(early[0], refused=EITHER)
        script.later(1).ask(count=5)
        script.later(WINDOW // 4 - 1)
        for ticket in late[:2]:
            reply = script.answer(ticket, refused=EITHER)
        assert ("starts" in reply["learnt"]) == lowered

    def test_what_was_started_without_a_limit_counts(self, client: redis.Redis) -> None:
        script = fleet(client)
        tickets = script.ask(count=10)
        for ticket in tickets[:3]:
            script.answer(ticket, refused=STARTS)
        assert script.ask() == []
        assert len(script.later(WINDOW + GUARD).ask(count=9)) == 7

    def test_in_a_nearly_full_window_one_is_enough(self, client: redis.Redis) -> None:
        for used, level, hold in ((18, 20, HOLD), (19, 18, NAMED_HOLD)):
            script = remembering(
                client,
                {"starts": {"level": 20, "ceiling": 20, "hold_ms": HOLD, "changed_at": 0, "lowered_at": 0}},
                starts=40,
            )
            memory = learnt(script.later(1).answer(script.ask(count=used)[-1], refused=STARTS))
            assert (memory["level"], memory["hold_ms"]) == (level, hold)


class TestRaised:
    MEMORY: ClassVar = {"level": 4, "ceiling": 4, "hold_ms": HOLD, "changed_at": 0, "lowered_at": 0}

    def trying(self, client: redis.Redis, **limits: int) -> tuple[Script, str]:
        """Four starts in a window, and one more that is tried; others wait."""
        script = remembering(client, {"starts": {**self.MEMORY, "most_accepted": 0}}, **{"starts": 20, **limits})
        begun = script.now
        assert len(script.ask(count=60)) == 4
        assert len(script.later(WINDOW + GUARD).look()) == 4
        script.now = begun + HOLD - 1
        assert script.look() == []
        reply = script.later(1).turn()
        (tried,) = granted(reply)
        assert (learnt(reply)["level"], learnt(reply)["ceiling"], learnt(reply)["probing"]) == (4, 5, 1)
        assert (reply["learnt"], reply["at"]) == ({"starts": 4}, begun + 2 * (WINDOW + GUARD))
        return script, tried

    def test_one_more_is_tried_after_the_hold_when_the_window_is_full(self, client: redis.Redis) -> None:
        script, _ = self.trying(client)
        assert script.later(1).look() == [], "its answer is awaited"

    @pytest.mark.parametrize(("hold", "longer"), [(2000, HOLD), (HOLD, 2 * HOLD), (40_000, MOST_HOLD)])
    def test_a_refusal_of_it_lengthens_the_hold(self, client: redis.Redis, hold: int, longer: int) -> None:
        script = remembering(
            client, {"starts": {**self.MEMORY, "hold_ms": hold, "changed_at": hold, "most_accepted": 0}}, starts=20
        )
        *_, tried = script.ask(count=80)
        begun = script.now
        reply = script.later(1).answer(tried, refused=EITHER)
        memory = learnt(reply)
        assert (memory["level"], memory["ceiling"], memory["hold_ms"]) == (4, 4, longer)
        assert "probing" not in memory
        window = WINDOW + GUARD
        while script.now + window < begun + longer:
            assert len(script.later(window).look()) <= 4
        script.now = begun + longer - 1
        assert len(script.look()) <= 4
        assert len(script.later(1).look()) >= 1

    def test_an_acceptance_of_it_raises_the_limit(self, client: redis.Redis) -> None:
        """A window later four times as many are tried."""
        script, tried = self.trying(client)
        reply = script.later(100).answer(tried)
        raised = script.now
        assert (reply["learnt"], learnt(reply)["ceiling"]) == ({"starts": 5}, 9)
        assert "probing" not in learnt(reply)
        assert len(script.later(WINDOW - 100).look()) == 4
        script.now = raised + WINDOW - 1
        assert script.look() == []
        tried_now = script.later(1).look()
        assert len(tried_now) == 5, "nine in all: four are in the window, and one has just left it"
        assert script.answer(*tried_now)["learnt"] == {"starts": 9}

    def test_an_acceptance_of_another_is_no_proof(self, client: redis.Redis) -> None:
        script, _ = self.trying(client)
        for ticket in script.later(1000).look():
            assert learnt(script.answer(ticket))["probing"] == 1

    def test_a_try_that_nothing_came_of_is_followed_by_one_of_the_same_size(self, client: redis.Redis) -> None:
        """What waits a moment later is a part of it."""
        memory = {**self.MEMORY, "ceiling": 8, "most_accepted": 0}
        script = remembering(client, {"starts": memory}, starts=20)
        script.later(WINDOW)
        assert len(script.ask(count=9)) == 8
        assert script.look() == []
        script.turn(cancel=list(script.waiting()))
        assert len(script.later(HOLD).ask(count=6)) == 6
        assert len(script.later(999).ask(count=1)) == 1
        assert script.later(1).ask(count=1) == [], "what comes a second later is not"

    def test_a_try_that_finds_no_room_is_none(self, client: redis.Redis) -> None:
        memory = {**self.MEMORY, "hold_ms": 1000, "changed_at": 1000, "most_accepted": 0}
        script = remembering(client, {"starts": memory}, starts=5)
        assert len(script.ask(count=9)) == 5
        assert learnt(script.later(1000).turn())["tried_at"] == 1000

    @pytest.mark.parametrize(("refused", "level"), [(3, 17), (5, 15)])
    def test_what_refusals_without_a_name_took_is_tried_at_once_when_one_more_was_accepted(
        self, client: redis.Redis, refused: int, level: int
    ) -> None:
        memory = {**self.MEMORY, "level": 20, "ceiling": 20, "hold_ms": 1000, "most_accepted": 0}
        script = remembering(client, {"starts": memory}, starts=100)
        tickets = script.ask(count=20)
        reply = script.later(1).answer(*tickets[:refused], refused=EITHER)
        assert (reply["learnt"], learnt(reply)["most_accepted"]) == ({"starts": level}, 0)
        *_, tried = granted(script.later(WINDOW + GUARD).turn(ask=[[script.ticket(), 0] for _ in range(90)]))
        reply = script.later(1).answer(tried)
        assert (reply["learnt"], learnt(reply)["ceiling"]) == ({"starts": level + 1}, level + 5)
        assert len(granted(reply)) == 4
        reply = script.later(1).answer(*granted(reply))
        assert (reply["learnt"], granted(reply)) == ({"starts": level + 5}, []), "a window is waited for now"

    def test_an_end_that_is_not_known_is_no_proof(self, client: redis.Redis) -> None:
        script, tried = self.trying(client)
        assert learnt(script.end(tried))["probing"] == 1

    def test_at_the_limit_that_is_set_all_is_forgotten(self, client: redis.Redis) -> None:
        script, tried = self.trying(client, starts=5)
        assert "learnt" not in script.later(1).answer(tried)

    def test_more_are_tried_only_as_far_as_the_limit_that_is_set_allows_in_window_and_guard(
        self, client: redis.Redis
    ) -> None:
        memory = {**self.MEMORY, "changed_at": HOLD - WINDOW - 100, "lowered_at": HOLD - WINDOW - 100}
        script = remembering(client, {"starts": {**memory, "most_accepted": 0}}, starts=5)
        assert len(script.ask(count=60)) == 4
        tried = script.later(WINDOW + 100).look()
        assert len(tried) == 1, "those of the guard have left the provider's window, not the fleet's"
        assert script.later(1).look() == []
        assert "learnt" not in script.answer(*tried), "all that is set was used and accepted"
        script.now += GUARD - 101 - 1
        assert script.look() == []
        assert len(script.later(1).look()) == 4

    def test_a_raise_that_is_far_off_is_not_waited_for(self, client: redis.Redis) -> None:
        for before, waits in ((1001, WINDOW + GUARD), (1000, 1000)):
            memory = {**self.MEMORY, "changed_at": HOLD - before, "lowered_at": HOLD - before, "most_accepted": 0}
            script = remembering(client, {"starts": memory}, starts=20)
            reply = script.turn(ask=[[script.ticket(), 0] for _ in range(6)])
            assert (len(granted(reply)), reply["at"]) == (4, script.now + waits)

    def test_the_start_that_leaves_first_is_waited_for_where_that_is_sooner(self, client: redis.Redis) -> None:
        memory = {**self.MEMORY, "changed_at": HOLD - 6000, "lowered_at": HOLD - 6000, "most_accepted": 0}
        script = remembering(client, {"starts": memory}, starts=20)
        leaves = script.now + WINDOW + GUARD
        script.ask(count=6)
        assert script.later(5100).turn()["at"] == leaves

    def test_of_more_than_the_limit_as_many_must_leave(self, client: redis.Redis) -> None:
        script = fleet(client, starts=20)
        begun = script.now
        tickets = script.ask(count=10)
        for _ in range(10):
            tickets += script.later(60).ask()
        for ticket in tickets[:3]:
            reply = script.answer(ticket, refused=STARTS)
        assert reply["learnt"] == {"starts": 15}
        reply = script.turn(ask=[[script.ticket(), 0] for _ in range(9)])
        assert reply["at"] == begun + WINDOW + GUARD
        script.now = reply["at"]
        assert len(script.look()) == 5
        script.set_limits(starts=3)
        script.turn()
        reply = script.later(250).turn()
        assert reply["at"] == begun + 2 * (WINDOW + GUARD), "all but two of fifteen must have left"


class TestWhichLimit:
    def refused(self, client: redis.Redis, count: int, *, accepted: bool = False, **limits: int) -> dict[str, Any]:
        script = fleet(client, **limits)
        tickets = script.ask(count=count)
        if accepted:
            script.end(tickets.pop())
            tickets += script.ask()
        return script.answer(tickets[0], refused=EITHER)

    @pytest.mark.parametrize(("count", "slots"), [(7, 6), (8, None), (10, None)])
    def test_that_on_starts_when_four_fifths_of_it_are_used(
        self, client: redis.Redis, count: int, slots: int | None
    ) -> None:
        assert self.refused(client, count, starts=10)["learnt"].get("slots") == slots

    def test_that_on_slots_when_there_is_no_other(self, client: redis.Redis) -> None:
        assert self.refused(client, 7)["learnt"] == {"slots": 6}

    def test_that_on_starts_when_as_many_slots_were_in_use_before(self, client: redis.Redis) -> None:
        assert self.refused(client, 7, accepted=True)["learnt"] == {}
        assert self.refused(client, 7, accepted=True, starts=100)["learnt"] == {}

    def test_whatever_is_used_where_the_provider_says_which(self, client: redis.Redis) -> None:
        for by, kind in ((SLOTS, "slots"), (STARTS, "starts")):
            script = fleet(client, starts=10)
            tickets = script.ask(count=10)
            for ticket in tickets[:3]:
                reply = script.answer(ticket, refused=by)
            assert list(reply["learnt"]) == [kind]

    def test_the_starts_of_a_lower_limit_that_was_learnt(self, client: redis.Redis) -> None:
        memory = {"level": 5, "ceiling": 5, "hold_ms": HOLD, "changed_at": 0, "lowered_at": 0, "most_accepted": 0}
        for count, slots in ((3, 2), (4, None)):
            script = remembering(client, {"starts": memory}, starts=100)
            ticket, *_ = script.ask(count=count)
            assert script.later(1).answer(ticket, refused=EITHER)["learnt"].get("slots") == slots


class TestStated:
    @pytest.mark.parametrize(
        ("set_to", "stated", "limit"),
        [(0, 120, 10), (11, 120, 10), (10, 120, None), (9, 120, None), (0, 131, 10), (0, 132, 11), (0, 1, 1)],
    )
    def test_a_number_of_a_minute_holds_where_it_is_the_lower_one(
        self, client: redis.Redis, set_to: int, stated: int, limit: int | None
    ) -> None:
        script = fleet(client, starts=set_to)
        reply = script.turn(stated_starts=stated)
        assert reply.get("learnt", {}).get("starts") == limit
        assert reply["limits"]["starts"] == set_to
        assert len(script.ask(count=20)) == (limit or set_to)

    def test_for_a_quarter_of_an_hour(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.turn(stated_starts=240)
        script.later(1).turn(stated_starts=120)
        reply = script.later(STATED_MOST).turn()
        assert (reply["learnt"], reply["learners"]["stated"]) == ({"starts": 10}, [10, WINDOW, STATED_MOST])
        assert "learnt" not in script.later(1).turn()

    def test_of_another_window_it_is_another_number(self, client: redis.Redis) -> None:
        script = fleet(client)
        script.turn(stated_starts=120)
        script.set_limits(window_ms=2 * WINDOW)
        reply = script.later(7).turn()
        assert (reply["learnt"], reply["learners"]["stated"]) == ({"starts": 20}, [20, 2 * WINDOW, 7])
        script.set_limits(window_ms=WINDOW // 2)
        assert script.turn()["learnt"] == {"starts": 5}

    def test_a_window_that_a_former_version_did_not_note_is_not_converted(self, client: redis.Redis) -> None:
        script = remembering(client, {"stated": [10, 0, 100]})
        assert script.turn()["learners"]["stated"] == [10, 0, 100]
        script.set_limits(window_ms=2 * WINDOW)
        assert script.turn()["learnt"] == {"starts": 10}

    def test_it_is_brought_back_with_its_age(self, client: redis.Redis) -> None:
        script = remembering(client, {"stated": [10, WINDOW, STATED_MOST - 5]})
        assert script.later(5).turn()["learnt"] == {"starts": 10}
        assert "learnt" not in script.later(1).turn()

    def test_batch_keeps_a_start_of_it(self, client: redis.Redis) -> None:
        script = fleet(client, starts=50, reserve_starts=20)
        script.turn(stated_starts=120)
        assert script.turn()["limits"]["reserve_starts"] == 9
        assert len(script.ask(count=5)) == 1


class TestPublished:
    """What is learnt is published to all processes, at most four times a second."""

    def lowered(self, client: redis.Redis) -> tuple[Script, list[str]]:
        script = fleet(client, slots=16)
        script.listen("aa")
        tickets = script.ask(count=6)
        script.published()
        assert script.later(1).answer(tickets.pop(), refused=SLOTS)["learnt"] == {"slots": 5}
        return script, tickets

    def test_at_once(self, client: redis.Redis) -> None:
        script, _ = self.lowered(client)
        ((channel, message),) = script.published()
        assert (channel, message["learnt"], message["as_of"]) == ("everyone", {"slots": 5}, script.now)
        assert message["learners"]["slots"] == learnt(script.turn(), "slots")
        assert script.published() == []

    def test_the_next_change_a_quarter_of_a_second_later(self, client: redis.Redis) -> None:
        script, tickets = self.lowered(client)
        script.published()
        first = script.now
        reply = script.later(100).answer(tickets.pop(), refused=SLOTS)
        assert (reply["learnt"], reply["at"]) == ({"slots": 4}, first + 250)
        assert script.later(149).turn()["at"] == first + 250
        assert script.published() == []
        assert "at" not in script.later(1).turn()
        ((_, message),) = script.published()
        assert (message["learnt"], message["as_of"]) == ({"slots": 4}, first + 250)

    def test_a_turn_that_is_due_before_stays_due(self, client: redis.Redis) -> None:
        script, tickets = self.lowered(client)
        script.end(tickets.pop(), cooldown=120, verdict=-1)
        script.turn(ask=[[script.ticket(), 0] for _ in range(2)])
        reply = script.later(100).answer(tickets.pop(), refused=SLOTS)
        assert reply["at"] == script.now + 20

    def test_and_when_it_is_forgotten(self, client: redis.Redis) -> None:
        script, _ = self.lowered(client)
        script.published()
        script.set_limits(slots=5)
        script.later(250).turn()
        ((_, message),) = script.published()
        assert (message["learnt"], message["learners"]) == ({}, {})

    def test_one_process_logs_it_after_three_seconds(self, client: redis.Redis) -> None:
        script, _ = self.lowered(client)
        assert "told" not in script.later(2999).turn()
        reply = script.later(1).turn()
        assert (reply["told"], learnt(reply, "slots")["logged"]) == (["slots"], 1)
        assert "told" not in script.later(1).turn()

    def test_of_starts_too(self, client: redis.Redis) -> None:
        script = fleet(client)
        for ticket in script.ask(count=9)[:3]:
            script.answer(ticket, refused=STARTS)
        assert script.later(3000).turn()["told"] == ["starts"]

    def test_a_number_of_slots_that_nobody_set_is_not_logged(self, client: redis.Redis) -> None:
        script = fleet(client, auto=1)
        ticket, *_ = script.ask(count=5)
        for ticket in script.ask(count=5):
            script.later(300).answer(ticket, refused=SLOTS)
        assert script.turn()["learnt"]["slots"] < 8
        assert "told" not in script.later(3000).turn()
