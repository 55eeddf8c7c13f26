"""Rules of the admission's script, command by command: its clock, which does not follow steps of the server's."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.admission_script import Script, granted

LEASE = 4000
LEAP, FROZEN_MOST = 250, 2000


def fleet(client: redis.Redis, *processes: str, **limits: int) -> tuple[Script, str]:
    """They listen, and have just spoken, the first of them last. The id of the clock."""
    script = Script(client, **limits)
    script.listen(*processes)
    for process in processes:
        clock: str = script.join(process)["clock"]
    for process in reversed(processes):
        script.later(1).turn(process)
    for process in processes:
        script.published(process)
    return script, clock


class TestBound:
    """A process that has read the clock names the time that it cannot be past."""

    def test_a_command_past_it_is_sent_again_first(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        bound = script.now + 50
        ticket = script.ticket()
        assert script.later(50).turn(clock=clock, bound_ms=bound)["now"] == bound
        reply = script.later(1).turn(clock=clock, bound_ms=bound, ask=[[ticket, 0]], pause=[1000, "x"])
        assert (reply["status"], reply["now"]) == ("late", script.now)
        reply = script.turn(clock=clock, bound_ms=script.now)
        assert (reply["status"], reply["now"]) == ("ok", script.now)
        assert "pause" not in reply
        assert script.waiting() == {}

    def test_a_step_forward_is_held_back_to_it(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        bound = script.now + 50
        assert script.later(100_000).turn(clock=clock, bound_ms=bound)["status"] == "late"
        reply = script.turn(clock=clock, bound_ms=bound, stepped=True)
        assert (reply["status"], reply["now"]) == ("ok", bound)
        assert script.later(10).turn("bb", clock=clock, bound_ms=bound + 50)["now"] == bound + 10

    def test_a_bound_after_the_clock_holds_nothing_back(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        assert script.later(10).turn(clock=clock, bound_ms=script.now + 1000, stepped=True)["now"] == script.now

    def test_it_does_not_go_back(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        begun = script.now
        assert script.later(-5000).turn(clock=clock, bound_ms=begun + 50)["now"] == begun
        assert script.later(100).turn(clock=clock, bound_ms=begun + 200)["now"] == begun + 100
        assert script.later(5000).turn("bb", clock=clock, bound_ms=begun + 300)["status"] == "late"

    def test_time_that_it_has_lost_does_not_come_back(self, client: redis.Redis) -> None:
        """By the bound of a process that has not heard of the loss: starts meanwhile would count as older."""
        script, clock = fleet(client, "aa", "bb", starts=4)
        begun, idle = script.now, 3000
        tickets = [[script.ticket(), 0] for _ in range(4)]
        reply = script.turn(clock=clock, least_ms=begun + idle, bound_ms=begun + idle + 50, ask=tickets)
        assert (reply["now"], len(reply["grants"])) == (begun, 4), "TIME was stepped back by as long as all were idle"
        assert reply["clock"] != clock
        script.later(idle + 100)  # it is stepped forward again
        asked = [[script.ticket("bb"), 0]]
        late = script.turn("bb", clock=clock, least_ms=begun + idle + 50, bound_ms=begun + idle + 150, ask=asked)
        assert late["status"] == "frozen"
        known = {"clock": reply["clock"], "bound_ms": begun + 150, "stepped": True}
        assert script.turn(**known)["now"] == begun + 150
        reply = script.later(100).turn("bb", clock=clock, bound_ms=script.now, ask=asked)
        assert (reply["status"], reply["now"]) == ("ok", begun + 250)
        assert reply["clock"] == known["clock"]
        assert granted(reply) == []

    def test_one_that_keeps_its_time_is_the_same_clock(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        assert "clock" not in script.later(100).turn(clock=clock, least_ms=script.now, bound_ms=script.now)
        reply = script.later(100).turn(clock="other", least_ms=script.now + 1)
        assert reply["clock"] == clock, "what is said of another clock is no loss of this one"
        reply = script.later(100).turn(clock=clock, least_ms=script.now + 1, bound_ms=script.now + 1)
        assert reply["clock"] != clock

    def test_one_of_another_clock_bounds_nothing(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        reply = script.later(100).turn(clock="other", bound_ms=script.now - 50)
        assert (reply["status"], reply["now"], reply["clock"]) == ("ok", script.now, clock)
        assert "clock" not in script.turn(clock=clock, bound_ms=script.now)

    def test_of_a_version_that_names_no_clock_it_bounds_in_its_epoch(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        assert script.later(100).turn(bound_ms=script.now - 1)["status"] == "late"

    def test_it_bounds_a_clock_that_was_lost(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        bound = script.now + 20
        script.forget("state")
        reply = script.later(9000).turn(clock=clock, bound_ms=bound)
        assert (reply["status"], reply["now"]) == ("join", bound)


class TestLost:
    """The other keys show how far the clock had come."""

    @pytest.mark.parametrize(("lost", "back"), [(["state"], 0), (["state", "heard"], 1000), (["state", "starts"], 0)])
    def test_it_goes_on_from_the_newest_entry(self, client: redis.Redis, lost: list[str], back: int) -> None:
        script, _ = fleet(client, "aa", "bb", starts=5)
        script.ask()
        script.later(1000).turn()
        begun = script.now
        script.forget(*lost)
        assert script.later(-50_000).turn()["now"] == begun - back

    def test_a_lease_shows_it_too(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        script.ask()
        begun = script.now
        script.forget("state", "heard")
        assert script.later(-50_000).turn()["now"] == begun

    def test_processes_that_nobody_remembers_may_be_alive_while_they_listen(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        script.forget()
        assert script.turn("aa", schema=2)["status"] == "schema"
        script.deafen("bb")
        assert script.turn("aa", schema=2)["status"] == "join"


class TestFrozen:
    """A process that has not read the clock cannot know how much of the time has passed."""

    def asks(self, script: Script, process: str = "aa", **fields: Any) -> dict[str, Any]:
        return script.turn(process, clock="", **fields)

    def test_a_little_may_have(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        assert self.asks(script.later(LEAP))["now"] == script.now

    def test_of_more_another_process_must_speak_first(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb", "cc")
        begun, epoch = script.now, script.turn()["epoch"]
        ticket = script.ticket()
        reply = self.asks(script.later(LEAP + 1), ask=[[ticket, 0]])
        assert reply == {"status": "frozen", "epoch": epoch, "now": begun, "clock": clock, "real": script.now}
        assert script.waiting() == script.held() == {}
        published = {process: script.published(process) for process in ("aa", "bb", "cc")}
        assert published == {"aa": [], "bb": [("bb", {"now": begun, "epoch": epoch, "at": begun})], "cc": []}
        script.turn("bb", clock=clock, bound_ms=script.now)
        assert self.asks(script)["now"] == script.now

    def test_one_that_does_not_listen_is_not_asked(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb", "cc")
        script.deafen("bb")
        assert self.asks(script.later(LEAP + 1))["status"] == "frozen"
        assert [channel for channel, _ in script.published("cc")] == ["cc"]

    def test_in_an_epoch_that_is_not_open_all_are_asked_to_join(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        script.forget()
        epoch = script.turn()["epoch"]
        script.published("bb")
        assert self.asks(script.later(LEAP + 1))["status"] == "frozen"
        assert script.turn("bb")["epoch"] == epoch
        assert script.published("bb") == [("everyone", {"epoch": None})]

    def test_where_the_state_was_lost_the_clock_has_no_id_yet(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        script.forget("state")
        reply = self.asks(script.later(LEAP + 1))
        assert (reply["status"], "clock" in reply) == ("frozen", False)
        assert [message for _, message in script.published("bb")] == [{"epoch": None}]

    def test_when_that_does_not_help_all_are_asked(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb", "cc", "dd")
        begun = script.now
        script.deafen("dd")
        assert self.asks(script.later(LEAP + 1), waited=[begun, 100, clock, 0])["status"] == "frozen"
        assert [len(script.published(process)) for process in ("aa", "bb", "cc")] == [0, 1, 1]

    def test_a_process_that_is_alone_needs_nobody(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa")
        assert self.asks(script.later(100_000))["now"] == script.now

    def test_nor_does_one_that_nobody_listens_beside_but_only_when_the_others_are_gone(
        self, client: redis.Redis
    ) -> None:
        script, _ = fleet(client, "aa", "bb")
        script.deafen("bb")
        assert self.asks(script.later(LEAP + 1))["status"] == "frozen", "it may be cut off"
        script.turn("bb", leave=True)
        assert self.asks(script.later(100_000))["now"] == script.now

    def test_after_two_seconds_the_time_that_it_has_waited_itself_counts(self, client: redis.Redis) -> None:
        script, clock = fleet(client, "aa", "bb")
        begun = script.now
        script.later(9000)
        assert self.asks(script, waited=[begun, FROZEN_MOST - 1, clock, 0])["status"] == "frozen"
        assert self.asks(script, waited=[begun - 1, FROZEN_MOST, "other", 0])["status"] == "frozen"
        reply = self.asks(script, waited=[begun, FROZEN_MOST, clock, 0])
        assert (reply["status"], reply["now"]) == ("ok", begun + FROZEN_MOST)
        assert reply["clock"] != clock, "it has lost time"
        assert script.later(100).turn(clock=clock, bound_ms=script.now)["now"] == begun + FROZEN_MOST + 100

    def test_when_others_have_spoken_the_server_s_time_is_right_unless_it_was_stepped(
        self, client: redis.Redis
    ) -> None:
        script, clock = fleet(client, "aa", "bb")
        begun = script.now
        script.later(100).turn("bb")
        script.later(1000)
        assert self.asks(script, waited=[begun, 500, clock, script.now - 1])["status"] == "frozen"
        assert self.asks(script, waited=[begun, 500, clock, script.now])["now"] == script.now

    def test_an_epoch_that_is_not_open_opens_later_by_that_time(self, client: redis.Redis) -> None:
        script, _ = fleet(client, "aa", "bb")
        script.forget()
        clock = script.turn()["clock"]
        begun = script.now
        script.later(3000)
        reply = script.join(
            "aa", alive=2, members=["aa", "bb"], used=0, used_age_ms=0, starts=[], tokens=[],
            _ask=[[script.ticket(), 0]], _clock="", _waited=[begun, FROZEN_MOST, clock, 0],
        )  # fmt: skip
        assert (reply["now"], reply["at"]) == (begun + FROZEN_MOST, begun + LEASE + FROZEN_MOST)

    def test_a_version_that_names_no_clock_is_believed_within_two_leases(self, client: redis.Redis) -> None:
        for listens, waited, passed in ((True, 2 * LEASE, 2 * LEASE), (True, 2 * LEASE + 1, 0), (False, 9999, 9999)):
            script, _ = fleet(client, "aa", "bb")
            if not listens:
                script.deafen("bb")
            begun = script.now
            assert script.later(waited).turn()["now"] == begun + passed
            assert script.later(10).turn()["now"] == begun + passed + 10
