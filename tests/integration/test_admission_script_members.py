"""Rules of the admission's script, command by command: who belongs to the fleet, and who can be sent a grant."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.admission_script import Script, granted

LEASE = 4000
PARKED = 10**15
"""Added to the scores of tickets whose process is away."""


def fleet(client: redis.Redis, *processes: str, **limits: int) -> Script:
    """They listen and know each other."""
    script = Script(client, **{"ramp_ms": 0, **limits})
    script.listen(*processes)
    for process in processes:
        script.join(process, _members=0)
    for process in processes:
        script.turn(process, members=script.turn(process, members=0)["members"][0])
    for process in processes:
        script.published(process)
    return script


def lists(script: Script, process: str = "aa") -> list[list[str]]:
    """The lists of members that were sent to all since the last call."""
    messages = [message for channel, message in script.published(process) if channel == "everyone"]
    return [sorted(message["members"][1]) for message in messages if "members" in message]


def waits(script: Script, process: str, count: int = 1) -> list[str]:
    """Tickets that wait for the end of a pause, 100 ms from now."""
    tickets = [script.ticket(process) for _ in range(count)]
    script.turn(process, ask=[[ticket, 0] for ticket in tickets], pause=[100, "wait"])
    return tickets


def sent(script: Script, process: str) -> list[str]:
    """What it was granted in others' turns since the last call."""
    messages = [message for channel, message in script.published(process) if channel == process]
    return [grant[1] for message in messages for grant in message.get("grants", [])]


class TestMembers:
    def test_the_list_is_published_when_one_joins_or_leaves(self, client: redis.Redis) -> None:
        script = fleet(client, "aa")
        script.join("bb")
        ((_, message),) = script.published("aa")
        rev, members = message["members"]
        assert (sorted(members), message["alive"], message["epoch"]) == (["aa", "bb"], 2, script.turn()["epoch"])
        assert "lag_most" not in message
        script.turn("bb", leave=True)
        ((_, message),) = script.published("aa")
        assert message["members"] == [rev + 1, ["aa"]]

    def test_a_process_with_another_list_gets_the_one_in_force(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb")
        rev, members = script.turn("aa", members=0)["members"]
        assert sorted(members) == ["aa", "bb"]
        assert "members" not in script.turn("aa", members=rev)
        assert "members" not in script.turn("aa"), "it is of a version without lists"

    def test_one_that_is_awaited_after_a_loss_is_on_the_list(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb", "cc")
        script.forget()
        script.turn("aa")
        knew = {"alive": 3, "used": 0, "used_age_ms": 100, "starts": [], "tokens": []}
        script.join("aa", **knew, members=["aa", "bb", "cc"])
        script.published("aa")
        reply = script.join("bb", **knew, members=["aa", "bb"], _members=0)
        assert sorted(reply["members"][1]) == ["aa", "bb", "cc"]
        assert lists(script)[0] == ["aa", "bb", "cc"]

    def test_one_that_has_sent_nothing_for_two_leases_is_removed(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb", "cc")
        script.later(1).turn("aa")
        script.turn("cc")
        script.later(2 * LEASE - 2).turn("aa")
        assert lists(script) == []
        assert script.turn("aa")["alive"] == 1
        script.later(1).turn("aa")
        assert lists(script) == [["aa", "cc"]]
        script.later(1).turn("aa")
        assert lists(script) == [["aa"]]
        script.turn("aa")
        assert lists(script) == []

    def test_not_the_one_that_sends(self, client: redis.Redis) -> None:
        script = fleet(client, "aa")
        script.later(3 * LEASE).turn("aa")
        assert script.turn("aa")["alive"] == 1
        assert lists(script) == []

    def test_of_one_that_left_nothing_stays(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb")
        script.turn("bb", worker='{"host":"h"}')
        tickets = [script.ticket("bb", queue) for queue in "isb"]
        mine = script.ticket("aa")
        script.turn("aa", ask=[[mine, 0]], pause=[100_000, "wait"])
        script.turn("bb", ask=[[ticket, 0] for ticket in tickets])
        script.client.hset(script.keys["commands"], "bb asked", 1)
        script.client.hset(script.keys["pushed"], "bb", 1)
        script.client.hset(script.keys["inbox"], "bb", "[]")
        script.turn("bb", leave=True)
        for key in ("commands", "pushed", "inbox", "workers"):
            fields: Any = script.client.hkeys(script.keys[key])
            assert [field for field in fields if field.startswith("bb")] == []
        assert list(script.waiting("batch")) == [mine]
        assert script.waiting("interactive") == script.waiting("start_only") == {}


class TestNewcomer:
    """It is granted nothing until all others know it: it could hold slots that nobody misses after a loss."""

    def newcomer(self, client: redis.Redis) -> tuple[Script, int]:
        """``cc`` has joined ``aa`` and ``bb``. The revision of the list with it."""
        script = fleet(client, "aa", "bb")
        script.listen("cc")
        return script, script.join("cc", _members=0)["members"][0]

    def test_it_waits_until_all_have_confirmed_it(self, client: redis.Redis) -> None:
        script, rev = self.newcomer(client)
        assert script.ask("cc") == []
        script.turn("aa", members=rev)
        script.turn("bb", members=rev - 1)
        assert script.look("cc") == []
        assert len(script.waiting()) == 1
        script.turn("bb", members=rev)
        assert len(script.look("cc")) == 1

    def test_the_first_process_waits_for_the_second(self, client: redis.Redis) -> None:
        script = Script(client)
        script.listen("aa", "bb")
        script.join("aa", _members=0)
        rev = script.join("bb", _members=0)["members"][0]
        assert script.ask("aa") == []
        script.turn("bb", members=rev)
        assert len(script.look("aa")) == 1

    def test_others_need_not_wait(self, client: redis.Redis) -> None:
        script, rev = self.newcomer(client)
        script.turn("cc", members=rev, ask=[[script.ticket("cc"), 0]])
        assert len(script.ask("aa")) == len(script.ask("bb")) == 1

    def test_for_one_that_was_silent_for_a_lease_nobody_waits(self, client: redis.Redis) -> None:
        script, rev = self.newcomer(client)
        script.ask("cc")
        begun = script.now
        script.later(LEASE - 1).turn("aa", members=rev)
        assert script.look("cc") == []
        script.now = begun + LEASE
        script.turn("aa", members=rev)
        assert len(script.look("cc")) == 1

    def test_nor_for_one_of_a_version_that_confirms_nothing(self, client: redis.Redis) -> None:
        script = Script(client)
        script.listen("aa", "bb", "cc")
        script.join("aa")
        script.join("bb", _members=0)
        script.turn("bb", members=99)
        script.join("cc")
        assert len(script.ask("cc")) == 1

    def test_once_known_it_stays_so(self, client: redis.Redis) -> None:
        script, rev = self.newcomer(client)
        for process in ("aa", "bb"):
            script.turn(process, members=rev)
        assert len(script.ask("cc")) == 1
        script.turn("aa", members=rev - 1)
        assert len(script.ask("cc")) == 1

    def test_two_at_a_time(self, client: redis.Redis) -> None:
        script, _ = self.newcomer(client)
        rev = script.join("dd", _members=0)["members"][0]
        for process in ("aa", "bb", "cc"):
            script.turn(process, members=rev - 1)
        script.turn("dd", members=rev)
        assert len(script.ask("cc")) == 1
        assert script.ask("dd") == []
        for process in ("aa", "bb", "cc"):
            script.turn(process, members=rev)
        assert len(script.look("dd")) == 1


class TestLag:
    """All must know the longest lag before a process uses it."""

    def test_it_is_rounded_up_and_the_longest_counts(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb")
        for lag, most in ((20, 20), (21, 40), (40, 40), (39, 40), (100, 160)):
            assert script.turn("aa", worker=f'{{"rtt_ms":7,"lag_ms":{lag}}}')["lag_most"] == most
        assert script.turn("bb")["lag_most"] == 160

    def test_a_process_whose_lag_grows_waits_until_all_know_it(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb")
        script.turn("aa", worker='{"lag_ms":30}')
        ((_, message),) = script.published("bb")
        assert message["lag_most"] == 40
        assert script.ask("aa") == []
        script.turn("bb", members=message["members"][0])
        assert len(script.look("aa")) == 1
        assert script.turn("aa", worker='{"lag_ms":40}')["status"] == "ok"
        assert len(script.ask("aa")) == 1, "that is no longer"


class TestQuota:
    """How many unconfirmed grants a process may have that is not the one that sends."""

    @pytest.mark.parametrize(
        ("slots", "others", "quota"), [(4, 1, 2), (3, 2, 2), (12, 1, 6), (9, 1, 5), (64, 1, 16), (640, 1, 20)]
    )
    def test_its_share_of_the_slots_within_bounds(
        self, client: redis.Redis, slots: int, others: int, quota: int
    ) -> None:
        script = fleet(client, "aa", "bb", "cc"[: 2 * (others - 1)] or "aa", slots=slots)
        tickets = waits(script, "bb", 30)
        script.later(100).turn("aa")
        assert sent(script, "bb") == tickets[: min(quota, slots)]

    def test_of_its_own_turn_there_is_none(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb", slots=40)
        tickets = waits(script, "bb", 40)
        assert granted(script.later(100).turn("bb")) == tickets

    def test_what_it_has_not_confirmed_counts(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb", slots=12)
        tickets = waits(script, "bb", 4)
        script.later(100).turn("aa")
        assert sent(script, "bb") == tickets
        more = waits(script, "bb", 9)
        script.turn("bb", seen=1)
        script.later(100).turn("aa")
        assert sent(script, "bb") == more[:3], "six but for three"
        script.turn("aa")
        assert sent(script, "bb") == []

    def confirmed_late(self, client: redis.Redis, after: int, *, rtt: int = 0, speaks: bool = False) -> bool:
        """Whether ``bb`` counts as away so long after it was asked to confirm its grants."""
        script = fleet(client, "aa", "bb", slots=2)
        waits(script, "bb", 3)
        script.turn("bb", worker=f'{{"rtt_ms":{rtt}}}')
        script.later(100).turn("aa")
        assert len(sent(script, "bb")) == 2
        if speaks:
            script.later(1).turn("bb", seen=0)
            script.now -= 1
        script.later(after).turn("aa")
        (left,) = script.waiting().values()
        return left >= PARKED

    def test_one_that_does_not_confirm_them_is_away(self, client: redis.Redis) -> None:
        assert not self.confirmed_late(client, LEASE // 16)
        assert self.confirmed_late(client, LEASE // 16 + 1)

    def test_one_that_spoke_just_before_it_was_asked_is_away_too(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb", slots=2)
        held = script.ask(count=2)
        script.turn("bb", ask=[[script.ticket("bb"), 0] for _ in range(3)])
        script.end(*held)
        assert len(sent(script, "bb")) == 2
        script.later(LEASE // 16 + 1).turn("aa")
        assert [score >= PARKED for score in script.waiting().values()] == [True]

    def test_one_that_is_far_has_time_for_it(self, client: redis.Redis) -> None:
        assert not self.confirmed_late(client, LEASE // 16 + 200, rtt=100)
        assert self.confirmed_late(client, LEASE // 16 + 201, rtt=100)

    def test_one_that_has_spoken_since_is_not(self, client: redis.Redis) -> None:
        assert not self.confirmed_late(client, LEASE // 16 + 1, speaks=True)

    @pytest.mark.parametrize(("silent", "receives"), [(LEASE // 2, True), (LEASE // 2 + 1, False)])
    def test_one_that_was_silent_for_half_a_lease_is_sent_nothing(
        self, client: redis.Redis, silent: int, *, receives: bool
    ) -> None:
        script = fleet(client, "aa", "bb")
        (ticket,) = waits(script, "bb")
        script.later(silent).turn("aa")
        assert sent(script, "bb") == ([ticket] if receives else [])
        assert all(score >= PARKED for score in script.waiting().values())
        assert granted(script.turn("bb")) == [ticket]

    def test_one_that_does_not_listen_is_sent_nothing(self, client: redis.Redis) -> None:
        script = fleet(client, "aa", "bb")
        (ticket,) = waits(script, "bb")
        script.deafen("bb")
        script.later(100).turn("aa")
        assert [score >= PARKED for score in script.waiting().values()] == [True]
        script.listen("bb")
        assert granted(script.turn("bb")) == [ticket]
