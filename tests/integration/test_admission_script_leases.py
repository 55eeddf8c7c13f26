"""Rules of the admission's script, command by command: leases, and the limits in force."""

from __future__ import annotations

import redis

from support.admission_script import LIMITS, Script, granted


class TestLease:
    def test_a_slot_is_free_when_its_lease_ends(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        script.ask()
        assert script.later(3999).ask() == []
        assert len(script.later(1).look()) == 1

    def test_one_alone_that_ended_is_reported(self, client: redis.Redis) -> None:
        script = Script(client)
        (ticket,) = script.ask()
        assert script.later(4000).turn(renew=[ticket])["lost"] == [ticket]

    def test_it_lasts_a_lease_from_its_renewal(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        (ticket,) = script.ask()
        script.later(1500).turn(renew=[ticket])
        assert script.held() == {ticket: script.now + 4000}

    def test_one_that_ended_is_not_renewed(self, client: redis.Redis) -> None:
        script = Script(client)
        first, second = script.ask(count=2)
        script.later(2000).turn(renew=[second])
        assert script.later(2000).turn(renew=[first, second])["lost"] == [first]
        assert script.held() == {second: script.now + 4000}

    def test_more_than_fit_into_one_command_are_renewed(self, client: redis.Redis) -> None:
        script = Script(client, slots=3000)
        tickets = script.ask(count=2500)
        gone = [script.ticket() for _ in range(5)]
        for place, ticket in zip((0, 999, 1000, 2000, 2504), gone, strict=True):
            tickets.insert(place, ticket)
        assert script.later(100).turn(renew=tickets)["lost"] == gone
        assert len(script.held()) == 2500
        assert set(script.held().values()) == {script.now + 4000}

    def test_a_shorter_lease_shortens_none(self, client: redis.Redis) -> None:
        script = Script(client)
        (ticket,) = script.ask()
        until = script.now + 4000
        script.set_limits(lease_ms=2000)
        script.later(100).turn(renew=[ticket])
        assert script.held() == {ticket: until}
        script.later(2500).turn(renew=[ticket])
        assert script.held() == {ticket: script.now + 2000}

    def test_ending_it_frees_the_slot_at_once(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        (ticket,) = script.ask()
        script.ask()
        reply = script.end(ticket)
        assert len(granted(reply)) == 1
        assert "lost" not in reply

    def test_ending_it_too_late_frees_nobody_elses(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        (ticket,) = script.ask()
        (other,) = script.later(4000).ask()
        reply = script.end(ticket, cooldown=1000)
        assert reply["lost"] == [ticket]
        assert list(script.held()) == [other]

    def test_a_slot_stays_taken_while_it_cools_down(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        (ticket,) = script.ask()
        reply = script.end(ticket, cooldown=700)
        assert "lost" not in reply
        reply = script.turn(ask=[[script.ticket(), 0]])
        assert (granted(reply), reply["at"]) == ([], script.now + 700)
        assert script.later(699).look() == []
        assert len(script.later(1).look()) == 1

    def test_a_millisecond_is_long_enough(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        (ticket,) = script.ask()
        script.ask()
        assert granted(script.end(ticket, cooldown=1)) == []
        assert len(script.later(1).look()) == 1

    def test_a_start_that_was_used_counts_and_one_given_back_does_not(self, client: redis.Redis) -> None:
        script = Script(client, starts=2)
        used, back = script.ask(count=2)
        script.end(used)
        assert script.ask() == []
        assert len(granted(script.end(back, undo=1))) == 1
        assert used in script.starts()
        assert back not in script.starts()

    def test_the_log_of_starts_is_trimmed_after_a_minute(self, client: redis.Redis) -> None:
        script = Script(client, starts=100)
        script.ask()
        (second,) = script.later(1).ask()
        script.later(59_999).turn()
        assert list(script.starts()) == [second]

    def test_and_after_a_longer_window_only_when_that_has_passed(self, client: redis.Redis) -> None:
        script = Script(client, starts=100, window_ms=90_000)
        (ticket,) = script.ask()
        script.later(90_499).turn()
        assert list(script.starts()) == [ticket]
        script.later(1).turn()
        assert script.starts() == {}

    def test_the_window_is_exact(self, client: redis.Redis) -> None:
        script = Script(client, starts=2)
        first = script.now
        assert len(script.ask()) == 1
        assert len(script.later(100).ask()) == 1
        reply = script.turn(ask=[[script.ticket(), 0] for _ in range(2)])
        assert (granted(reply), reply["at"], reply["used"]) == ([], first + 5500, 2)
        script.now = first + 5499
        assert script.look() == []
        reply = script.later(1).turn()
        assert (len(granted(reply)), reply["at"]) == (1, first + 5600)

    def test_when_a_slot_is_free_soon_its_end_is_waited_for(self, client: redis.Redis) -> None:
        """Of one that is far off, its process says so when it ends."""
        script = Script(client, slots=1)
        script.ask()
        waiting = [[script.ticket(), 0]]
        assert "at" not in script.turn(ask=waiting)
        assert "at" not in script.later(2666).turn()
        assert script.later(1).turn()["at"] == script.now + 1333


class TestLimits:
    def test_the_limits_in_force_are_given_to_whom_does_not_know_them(self, client: redis.Redis) -> None:
        script = Script(client)
        reply = script.join()
        assert {name: reply["limits"][name] for name in LIMITS} == LIMITS
        assert "overrides" not in reply
        rev = reply["rev"]
        assert "limits" not in script.turn(rev=rev)
        assert "limits" in script.turn(rev="other")

    def test_the_operators_come_before_the_defaults(self, client: redis.Redis) -> None:
        script = Script(client)
        rev = script.join()["rev"]
        script.set_limits(slots=2)
        reply = script.turn(rev=rev)
        assert (reply["limits"]["slots"], reply["overrides"]) == (2, {"slots": 2, "rev": 1})
        assert reply["rev"] != rev
        assert len(script.ask(count=3)) == 2

    def test_a_field_that_nobody_brought_has_its_default(self, client: redis.Redis) -> None:
        script = Script(client)
        for name in ("starts", "age_ms"):
            del script.limits[name]
        limits = script.join()["limits"]
        assert (limits["starts"], limits["age_ms"], limits["slots"]) == (600, 30_000, 4)

    def test_batch_keeps_one_slot_and_one_start_whatever_the_reserve(self, client: redis.Redis) -> None:
        script = Script(client, slots=2, starts=3, reserve_slots=9, reserve_starts=9)
        reply = script.join()
        assert (reply["limits"]["reserve_slots"], reply["limits"]["reserve_starts"]) == (1, 2)
        (ticket,) = script.ask(count=2)
        script.end(ticket)
        assert script.look() == [], "one start"

    def test_a_reserve_of_starts_without_a_limit_on_them_reserves_nothing(self, client: redis.Redis) -> None:
        script = Script(client, starts=0, reserve_starts=5)
        assert script.join()["limits"]["reserve_starts"] == 5
        assert len(script.ask(count=9)) == 4

    def test_other_defaults_wait_until_nobody_has_those_in_force(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        assert "differs" not in script.join("aa")
        script.listen("aa")
        script.limits["slots"] = 2
        reply = script.join("bb")
        assert (reply["differs"], reply["limits"]["slots"]) == (True, 1)
        assert script.turn("bb", defaults=script.limits)["differs"]
        script.deafen("aa")
        rev = reply["rev"]
        reply = script.turn("bb", defaults=script.limits, rev=rev)
        assert ("differs" in reply, reply["limits"]["slots"]) == (False, 2)
        assert reply["rev"] != rev

    def test_they_are_in_force_for_as_long_as_one_of_several_has_them(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        script.listen("aa", "bb")
        script.join("aa")
        reply = script.join("bb")
        assert "differs" not in reply
        assert reply["rev"] == script.turn("aa")["rev"], "the same defaults are no change"
        script.turn("aa", leave=True)
        script.limits["slots"] = 2
        assert script.join("cc")["differs"]
        script.turn("bb", leave=True)
        assert "differs" not in script.turn("cc", defaults=script.limits)

    def test_a_process_replaces_its_own(self, client: redis.Redis) -> None:
        script = Script(client, slots=1)
        script.listen("aa")
        script.join("aa")
        script.limits["slots"] = 2
        assert script.join("aa")["limits"]["slots"] == 2

    def test_a_field_that_the_new_ones_lack_has_its_default(self, client: redis.Redis) -> None:
        script = Script(client, breaker=7)
        script.listen("aa")
        assert script.join("aa")["limits"]["breaker"] == 7
        del script.limits["breaker"]
        script.limits["slots"] = 2
        assert script.join("aa")["limits"]["breaker"] == 20

    def test_one_field_that_differs_is_a_difference(self, client: redis.Redis) -> None:
        script = Script(client)
        script.listen("aa")
        script.join("aa")
        script.limits["guard_ms"] += 1
        assert script.join("bb")["differs"]

    def test_a_field_that_is_missing_is_compared_by_its_default(self, client: redis.Redis) -> None:
        script = Script(client, auto=0, breaker=20)
        script.listen("aa")
        del script.limits["breaker"]
        script.join("aa")
        script.limits["breaker"] = 20
        assert "differs" not in script.join("bb")
        script.limits["breaker"] = 21
        assert script.join("cc")["differs"]


class TestDeaths:
    """Processes that died while they held a request, counted by the request's name."""

    def dies(self, script: Script, process: str, name: str) -> None:
        """It is granted the request, and says nothing any more."""
        ticket = script.ticket(process, name=name)
        assert granted(script.turn(process, ask=[[ticket, 0]])) == [ticket]
        script.later(2 * 4000)

    def deaths(self, script: Script, process: str, name: str) -> tuple[str, int]:
        """The ticket of the request's next grant, and the deaths that come with it."""
        ticket = script.ticket(process, name=name)
        ((_, granted_ticket, _, *rest),) = script.turn(process, ask=[[ticket, 0]])["grants"]
        assert granted_ticket == ticket
        return ticket, rest[0] if rest and rest[0] else 0

    def test_each_that_held_it_counts(self, client: redis.Redis) -> None:
        script = Script(client)
        self.dies(script, "aa", "abc")
        self.dies(script, "bb", "abc")
        _, deaths = self.deaths(script, "cc", "abc")
        assert deaths == 2
        assert self.deaths(script, "cc", "def")[1] == 0

    def test_one_that_ended_it_did_not_die_with_it(self, client: redis.Redis) -> None:
        for verdict in (1, 0, -1):
            script = Script(client)
            ticket, _ = self.deaths(script, "aa", "abc")
            script.end(ticket, verdict=verdict)
            assert self.deaths(script, "bb", "abc")[1] == 0

    def test_a_late_end_counts_too(self, client: redis.Redis) -> None:
        script = Script(client)
        ticket, _ = self.deaths(script, "aa", "abc")
        assert script.later(4000).end(ticket, verdict=0)["lost"] == [ticket]
        assert self.deaths(script, "bb", "abc")[1] == 0

    def test_they_are_remembered_until_it_succeeds(self, client: redis.Redis) -> None:
        script = Script(client)
        self.dies(script, "aa", "abc")
        for verdict in (0, -1, 1):
            ticket, deaths = self.deaths(script, "bb", "abc")
            assert deaths == 1
            script.end(ticket, verdict=verdict)
        assert self.deaths(script, "bb", "abc")[1] == 0

    def test_a_process_that_failed_or_left_is_not_one_more(self, client: redis.Redis) -> None:
        script = Script(client)
        self.dies(script, "aa", "abc")
        ticket, _ = self.deaths(script, "bb", "abc")
        script.end(ticket, verdict=0)
        assert self.deaths(script, "cc", "abc")[1] == 1
        script.turn("cc", leave=True)
        assert self.deaths(script, "dd", "abc")[1] == 1

    def test_or_is_given_up(self, client: redis.Redis) -> None:
        script = Script(client)
        self.dies(script, "aa", "abc")
        ticket, _ = self.deaths(script, "bb", "abc")
        script.turn("bb", release=[[ticket, 0, 0, -1, 0, "abc", 1]])
        assert self.deaths(script, "cc", "abc")[1] == 0

    def test_the_name_may_be_another_than_the_ticket_s(self, client: redis.Redis) -> None:
        script = Script(client)
        ticket, _ = self.deaths(script, "aa", "abc")
        assert script.turn(rename=[[ticket, "def"]])["renamed"] == [[ticket, 0]]
        script.turn(release=[[ticket, 0, 0, -1, 0, "def"]])
        assert self.deaths(script, "bb", "def")[1] == self.deaths(script, "bb", "abc")[1] == 0

    def test_what_was_renamed_counts_under_its_new_name(self, client: redis.Redis) -> None:
        script = Script(client)
        ticket, _ = self.deaths(script, "aa", "abc")
        script.turn(rename=[[ticket, "def"]])
        script.later(2 * 4000)
        assert self.deaths(script, "bb", "abc")[1] == 0
        assert self.deaths(script, "bb", "def")[1] == 1

    def test_what_is_renamed_to_no_name_leaves_no_note(self, client: redis.Redis) -> None:
        script = Script(client)
        ticket, _ = self.deaths(script, "aa", "abc")
        assert script.turn(rename=[[ticket, ""]])["renamed"] == [[ticket, 0]]
        assert script.client.hlen(script.keys["on_wire"]) == 0

    def test_a_note_of_another_form_counts_nothing(self, client: redis.Redis) -> None:
        script = Script(client)
        script.client.hset(script.keys["on_wire"], "abc", "of another version")
        assert self.deaths(script, "aa", "abc")[1] == 0

    def test_a_process_that_leaves_takes_its_notes_along(self, client: redis.Redis) -> None:
        script = Script(client)
        for name in ("abc", "def"):
            self.deaths(script, "aa", name)
        script.turn("aa", leave=True)
        assert self.deaths(script, "bb", "abc")[1] == self.deaths(script, "bb", "def")[1] == 0

    def test_a_week_later_nobody_remembers(self, client: redis.Redis) -> None:
        for extra, left in ((0, 1), (1, 0)):
            script = Script(client)
            self.dies(script, "aa", "abc")
            script.now += 7 * 24 * 3600 * 1000 - 8000 + extra
            script.turn("bb")
            assert script.client.hlen(script.keys["on_wire"]) == left

    def test_notes_are_looked_through_only_when_a_process_has_died(self, client: redis.Redis) -> None:
        script = Script(client)
        self.dies(script, "aa", "abc")
        script.turn("bb")
        script.now += 7 * 24 * 3600 * 1000 + 1
        script.turn("bb")
        assert script.client.hlen(script.keys["on_wire"]) == 1
        script.turn("cc")
        script.later(2 * 4000).turn("bb")
        assert script.client.hlen(script.keys["on_wire"]) == 0
