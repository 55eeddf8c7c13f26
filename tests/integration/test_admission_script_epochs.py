"""Rules of the admission's script, command by command: what happens when the server has lost its memory, or a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from brimful_worker.local.server.valkey import Valkey
from support.admission_script import Script, granted
from support.admissions import follow

LEASE = 4000
WINDOW = 5500
"""Window and guard."""
KNEW: dict[str, Any] = {"alive": 2, "members": ["aa", "bb"], "used": 0, "used_age_ms": 100, "starts": [], "tokens": []}
"""What a process reports that knew of two, itself included."""


def pair(client: redis.Redis, **limits: int) -> Script:
    """``aa`` and ``bb``, which listen."""
    script = Script(client, **limits)
    script.listen("aa", "bb")
    script.join("aa")
    script.join("bb")
    for process in ("aa", "bb"):
        script.turn(process, members=99)
    return script


def lost(client: redis.Redis, **limits: int) -> Script:
    """The same, and the server has just forgotten everything: ``aa`` has noticed."""
    script = pair(client, **limits)
    script.forget()
    assert script.turn("aa")["status"] == "join"
    return script


def asks(script: Script, process: str = "aa", **reported: Any) -> dict[str, Any]:
    """It joins, with one request that waits."""
    return script.join(process, **{**KNEW, **reported}, _ask=[[script.ticket(process), 0]])


class TestOpening:
    def test_nothing_is_granted_until_all_are_back(self, client: redis.Redis) -> None:
        script = lost(client)
        opens = script.now + LEASE
        reply = asks(script)
        assert (granted(reply), reply["at"]) == ([], opens)
        assert "used" not in reply
        reply = asks(script.later(50), "bb")
        assert script.held(), "the last one to join opens it"
        assert reply["used"] == 0

    def test_or_until_a_lease_has_passed(self, client: redis.Redis) -> None:
        script = lost(client)
        asks(script)
        assert script.later(LEASE - 1).look() == []
        assert len(script.later(1).look()) == 1

    def test_also_on_a_server_that_remembers_nobody(self, client: redis.Redis) -> None:
        script = Script(client, clean=False)
        reply = script.turn("aa")
        assert "epoch" in reply
        assert script.ask("aa") == []
        assert script.later(LEASE - 1).look() == []
        assert len(script.later(1).look()) == 1

    def test_a_newcomer_vouches_for_nobody(self, client: redis.Redis) -> None:
        """It does not know whether anybody was there before."""
        script = lost(client)
        for process in ("aa", "bb"):
            script.join(process, alive=0, _ask=[[script.ticket(process), 0]])
        assert script.held() == {}
        script.later(LEASE).look()
        assert script.held()

    @pytest.mark.parametrize(("age", "sure"), [(LEASE, True), (LEASE + 1, False)])
    def test_one_that_spoke_long_ago_does_not_know_who_was_there(
        self, client: redis.Redis, age: int, sure: bool
    ) -> None:
        script = lost(client)
        for process in ("aa", "bb"):
            asks(script, process, used_age_ms=age)
        assert bool(script.held()) is sure

    def test_a_member_that_nobody_has_seen_since_is_awaited(self, client: redis.Redis) -> None:
        script = lost(client)
        asks(script, members=["aa", "bb", "dd"])
        asks(script, "bb")
        assert script.held() == {}
        script.join("dd", **KNEW)
        assert script.held()

    def test_so_is_one_that_only_the_second_knew(self, client: redis.Redis) -> None:
        script = lost(client)
        asks(script, members=["aa", "bb"])
        asks(script, "bb", members=["bb", "dd"])
        assert script.held() == {}

    def test_a_subscriber_that_has_not_joined_is_awaited(self, client: redis.Redis) -> None:
        script = pair(client)
        script.listen("dd")
        script.forget()
        script.turn("aa")
        asks(script)
        asks(script, "bb")
        assert script.held() == {}
        script.deafen("dd")
        script.look()
        assert script.held()

    def test_of_processes_that_name_no_members_as_many_must_be_back_as_there_were(self, client: redis.Redis) -> None:
        script = lost(client)
        asks(script, members=None, alive=3)
        asks(script, "bb", members=None, alive=2)
        assert script.held() == {}
        script.join("dd", **{**KNEW, "alive": 0, "members": None})
        assert script.held() == {}, "it was not one of them"
        script.join("ee", **{**KNEW, "members": None})
        assert script.held()

    def test_all_are_told_to_join(self, client: redis.Redis) -> None:
        script = pair(client)
        script.forget()
        script.published()
        epoch = script.turn("aa")["epoch"]
        assert ("everyone", {"epoch": epoch}) in script.published()

    def test_a_second_loss_forgets_nobody_who_is_awaited(self, client: redis.Redis) -> None:
        script = pair(client)
        script.server = "promoted"
        assert script.turn("aa")["status"] == "join"
        asks(script)
        script.server = "promoted again"
        script.later(100)
        assert script.turn("aa")["status"] == "join"
        reply = asks(script, members=["aa"])
        assert (script.held(), reply["at"]) == ({}, script.now + LEASE), "bb was there before the first"
        asks(script, "bb")
        assert script.held()

    def test_a_promoted_server_remembers_who_was_there(self, client: redis.Redis) -> None:
        script = pair(client)
        script.server = "promoted"
        script.turn("aa")
        script.join("aa", alive=0, _ask=[[script.ticket("aa"), 0]])
        assert script.held() == {}
        script.join("bb", alive=0)
        assert script.held()

    def test_but_not_whom_it_saw_more_than_a_lease_before_the_last(self, client: redis.Redis) -> None:
        script = pair(client)
        script.later(LEASE + 1).turn("aa")
        script.server = "promoted"
        script.turn("aa")
        script.deafen("bb")
        script.join("aa", alive=0, _ask=[[script.ticket("aa"), 0]])
        assert script.held()

    def test_a_turn_that_the_server_has_forgotten_is_a_loss(self, client: redis.Redis) -> None:
        """A replica that was one command behind."""
        script = pair(client)
        for back, status in ((0, "ok"), (1, "join")):
            script.turn("aa")
            number = int(script.client.hget(script.keys["commands"], "aa") or 0)
            script.client.hset(script.keys["commands"], "aa", str(number - back))
            assert script.turn("aa")["status"] == status

    def test_a_time_that_the_server_has_forgotten_is_one_too(self, client: redis.Redis) -> None:
        """Its data is that of an epoch before the one that the processes know."""
        script = pair(client)
        epoch = script.turn("aa")["epoch"]
        behind = {name: key for name, key in script.keys.items() if client.copy(key, f"behind {key}")}
        script.forget()
        for process in ("aa", "bb"):
            script.join(process, **KNEW)
        script.later(100).turn("aa")
        script.forget()
        for key in behind.values():
            client.rename(f"behind {key}", key)
        assert (known := script.turn("bb", read=script.now))["status"] == "join"
        assert known["epoch"] != epoch
        assert granted(asks(script, "bb", _read=known["now"])) == [], "the others have yet to join"
        assert script.turn("aa", read=known["now"])["status"] == "join"
        assert asks(script, "aa")["epoch"] == known["epoch"]
        assert script.held()

    async def test_so_is_a_replica_that_was_behind(self, valkey: Valkey, tmp_path: Path) -> None:
        """Also where nobody has read a later time: those who have are dead, or have yet to send a command."""
        client = redis.Redis.from_url(valkey.url, decode_responses=True)
        script = pair(client)
        with Valkey(tmp_path / "replica", options=("repl-diskless-sync-delay 0",)) as behind:
            await follow(redis.Redis.from_url(behind.url, decode_responses=True), valkey.port)
            assert script.ask("aa"), "granted after the copy was made"
            await follow(client, behind.port)
        assert script.held() == {}, "it has forgotten that"
        known = script.turn("bb")
        assert known["status"] == "join"
        assert granted(asks(script, "bb")) == [], "the other has yet to join"
        assert script.join("aa", **KNEW)["epoch"] == known["epoch"] == script.turn("bb")["epoch"]

    @pytest.mark.parametrize("key", ["slots", "starts", "tokens", "amounts", "heard", "commands", "state", "defaults"])
    def test_the_loss_of_one_key_is_noticed(self, client: redis.Redis, key: str) -> None:
        script = pair(client, tokens=1000, starts=1000)
        script.ask(tokens=5)
        script.forget(key)
        assert script.turn("aa")["status"] == "join"

    @pytest.mark.parametrize("key", ["pushed", "inbox", "workers", "start_only", "interactive", "batch", "limits"])
    def test_also_of_one_that_only_passes_work_on(self, client: redis.Redis, key: str) -> None:
        script = pair(client, slots=1)
        script.set_limits(age_ms=1000)
        script.ask()
        waiting = [[script.ticket(queue=queue), 0] for queue in "sib"]
        script.turn("aa", ask=waiting, pause=[1000, "wait"], worker='{"host":"h"}', seen=0)
        assert script.turn("aa", seen=0)["status"] == "ok"
        script.forget(key)
        assert script.turn("aa")["status"] == "join"

    @pytest.mark.parametrize("key", ["slots", "starts", "tokens"])
    def test_and_of_one_entry_of_several(self, client: redis.Redis, key: str) -> None:
        script = pair(client, tokens=1000, starts=1000)
        first, *_ = script.ask(tokens=5, count=3)
        script.client.zrem(script.keys[key], first)
        assert script.turn("aa")["status"] == "join"

    @pytest.mark.parametrize("field", ["clock", "owners", "last", "sums"])
    def test_and_of_a_field_of_the_state(self, client: redis.Redis, field: str) -> None:
        script = pair(client)
        assert script.client.hdel(script.keys["state"], field) == 1
        assert script.turn("aa")["status"] == "join"

    def test_also_after_the_first_command_of_all(self, client: redis.Redis) -> None:
        script = Script(client)
        script.join("aa")
        assert client.hdel(script.keys["state"], "owners") == 1
        assert script.turn("aa")["status"] == "join"

    def test_a_command_that_was_overtaken_does_nothing(self, client: redis.Redis) -> None:
        script = pair(client)
        ticket = script.ticket()
        reply = script.overtaken("aa", ask=[[ticket, 0]])
        assert (reply["status"], reply["epoch"]) == ("stale", script.turn("aa")["epoch"])
        assert script.held() == script.waiting() == {}
        assert script.ask("aa")

    @pytest.mark.parametrize(
        ("rev", "dropped", "status"), [(2, "", "ok"), (3, "slots", "ok"), (2, "slots", "join"), (1, "", "join")]
    )
    def test_the_operator_changes_limits_under_a_new_revision_only(
        self, client: redis.Redis, rev: int, dropped: str, status: str
    ) -> None:
        script = pair(client)
        script.set_limits(slots=9)
        script.set_limits(age_ms=9000)
        script.turn("aa")
        if dropped:
            script.client.hdel(script.keys["limits"], dropped)
        script.client.hset(script.keys["limits"], "rev", str(rev))
        assert script.turn("aa")["status"] == status

    def test_a_turn_of_a_version_that_counts_no_entries_is_none(self, client: redis.Redis) -> None:
        script = pair(client)
        script.ask()
        script.client.hset(script.keys["state"], "last", str(script.now))
        script.forget("slots")
        assert script.turn("aa")["status"] == "ok"

    def test_slots_that_cooled_down_are_waited_for_when_they_are_lost(self, client: redis.Redis) -> None:
        script = pair(client)
        (ticket,) = script.ask()
        script.end(ticket, cooldown=3000)
        cool = script.now + 3000
        script.forget("slots")
        script.later(10).turn("aa")
        asks(script)
        reply = asks(script, "bb")
        assert (script.held(), reply["epoch"]) == ({}, reply["epoch"])
        script.now = cool - 1
        assert script.look() == []
        script.later(1)
        assert script.look()

    def test_but_not_when_they_are_known(self, client: redis.Redis) -> None:
        script = pair(client)
        (ticket,) = script.ask()
        script.end(ticket, cooldown=3000)
        script.server = "promoted"
        script.turn("aa")
        asks(script)
        asks(script, "bb")
        assert len(script.held()) == 3


class TestReported:
    def test_leases_are_held_again(self, client: redis.Redis) -> None:
        script = lost(client, slots=2)
        mine = [script.ticket(), script.ticket()]
        script.join("aa", **{**KNEW, "leases": [[ticket] for ticket in mine]}, _ask=[[script.ticket(), 0]])
        assert script.held() == dict.fromkeys(mine, script.now + LEASE)
        asks(script, "bb")
        assert set(script.held()) == set(mine)

    def test_what_the_process_does_not_hold_is_free(self, client: redis.Redis) -> None:
        """A grant that never reached it."""
        script = pair(client, slots=4)
        first, second, third = script.ask(count=3)
        script.end(third, cooldown=2000)
        (other,) = script.ask("bb")
        script.join("aa", leases=[[second]])
        assert set(script.held()) == {second, other, "~" + third}
        assert first not in script.held()

    def test_starts_count_from_their_own_time(self, client: redis.Redis) -> None:
        script = lost(client, starts=2)
        began = script.now - 1000
        asks(script, starts=[[script.ticket(), 1000]], used=1)
        reply = asks(script, "bb")
        assert reply["used"] == 2, "one of the two that wait was granted"
        script.now = began + WINDOW - 1
        assert len(script.held()) <= 2
        assert len(script.starts()) == 2
        script.later(1).turn()
        script.turn("bb")
        assert len(script.starts()) == 3

    def test_a_start_that_is_reported_again_keeps_the_later_time(self, client: redis.Redis) -> None:
        script = pair(client, starts=9)
        (ticket,) = script.ask()
        at = script.now
        script.later(100).join("aa", leases=[[ticket]], starts=[[ticket, 500]])
        assert script.starts()[ticket] == at
        script.join("aa", leases=[[ticket]], starts=[[ticket, 10]])
        assert script.starts()[ticket] == at + 90

    def test_those_of_the_guard_are_not_put_back_beside_themselves(self, client: redis.Redis) -> None:
        script = lost(client, starts=3)
        ticket = script.ticket()
        asks(script, starts=[[ticket, WINDOW - 600]], used=1)
        asks(script, "bb")
        assert [start for start in script.starts() if start.startswith("unknown")] == []
        assert ticket in script.starts()

    def test_tokens_are_known_also_where_starts_need_no_log(self, client: redis.Redis) -> None:
        script = lost(client, starts=0, tokens=100)
        for process in ("aa", "bb"):
            script.join(process, **{**KNEW, "starts": None})
        assert len(script.ask(tokens=50)) == 1

    def test_starts_that_nobody_reports_are_put_back(self, client: redis.Redis) -> None:
        """Three were in the window when it was last read; one of them is known."""
        script = lost(client, starts=4)
        read_at = script.now - 100
        asks(script, starts=[[script.ticket(), 300]], used=3)
        script.join("bb", **KNEW)
        assert len(script.starts()) == 4, "three, and the one that was granted"
        assert sorted(script.starts().values())[1:3] == [read_at, read_at]

    def test_of_two_counts_the_later_one_counts(self, client: redis.Redis) -> None:
        for first, second, expected in (
            ((3, 100), (1, 50), 1), ((1, 50), (3, 100), 1), ((1, 50), (2, 50), 2), ((2, 50), (1, 50), 2),
        ):  # fmt: skip
            script = lost(client, starts=9)
            script.join("aa", **{**KNEW, "used": first[0], "used_age_ms": first[1]})
            script.join("bb", **{**KNEW, "used": second[0], "used_age_ms": second[1]})
            assert script.turn("aa")["used"] == expected

    def test_what_the_server_counted_itself_stays_known(self, client: redis.Redis) -> None:
        script = pair(client, starts=9)
        script.ask(count=3)
        script.forget("starts")
        script.later(200).turn("aa")
        asks(script, used=0, used_age_ms=LEASE)
        script.join("bb", **{**KNEW, "used_age_ms": LEASE})
        assert script.turn("aa")["used"] == 4

    def test_a_member_that_is_missing_may_have_started_all_it_could(self, client: redis.Redis) -> None:
        script = lost(client, starts=3, slots=9)
        lost_at = script.now
        asks(script)
        reply = script.later(LEASE).turn("aa")
        assert (granted(reply), reply["used"], reply["at"]) == ([], 3, lost_at + WINDOW)
        assert len(script.later(WINDOW - LEASE).look()) == 1

    def test_also_where_one_start_is_all(self, client: redis.Redis) -> None:
        script = lost(client, starts=1)
        lost_at = script.now
        asks(script)
        assert script.later(LEASE).turn("aa")["at"] == lost_at + WINDOW

    def test_so_may_one_that_kept_no_log(self, client: redis.Redis) -> None:
        script = lost(client, starts=3)
        asks(script, starts=None)
        assert asks(script, "bb")["used"] == 3

    def test_one_that_was_not_there_need_not_have_kept_one(self, client: redis.Redis) -> None:
        script = lost(client, starts=3)
        asks(script)
        script.join("bb", **KNEW)
        assert script.join("dd", alive=0)["used"] == 1

    def test_nor_one_that_joins_before_the_epoch_is_open(self, client: redis.Redis) -> None:
        script = lost(client, starts=3)
        script.join("dd", alive=0)
        asks(script)
        assert script.join("bb", **KNEW)["used"] == 1

    def test_of_a_single_start_too(self, client: redis.Redis) -> None:
        script = lost(client, starts=1)
        asks(script, starts=None)
        asks(script, "bb")
        assert script.held() == {}

    def test_a_limit_that_is_not_set_needs_no_log(self, client: redis.Redis) -> None:
        script = lost(client, starts=0)
        asks(script, starts=None, tokens=None)
        asks(script, "bb", starts=None, tokens=None)
        assert script.held()
        assert script.starts() == {}

    def test_tokens_are_counted_again(self, client: redis.Redis) -> None:
        script = lost(client, tokens=100)
        script.join("aa", **{**KNEW, "tokens": [[script.ticket(), 1000, 60]]})
        script.join("bb", **{**KNEW, "tokens": [[script.ticket("bb"), 500, 30]]})
        assert script.ask(tokens=11) == []
        assert len(script.later(WINDOW - 1000).look()) == 1

    def test_tokens_of_a_log_that_nobody_kept_are_all_there_were(self, client: redis.Redis) -> None:
        script = lost(client, tokens=100)
        lost_at = script.now
        script.join("aa", **{**KNEW, "tokens": None})
        script.join("bb", **KNEW)
        assert script.ask(tokens=1) == []
        script.now = lost_at + WINDOW - 1
        assert script.look() == []
        assert len(script.later(1).look()) == 1

    @pytest.mark.parametrize("reported", [20, 59])
    @pytest.mark.parametrize("key", ["tokens", "amounts"])
    def test_tokens_that_nobody_reports_are_put_back(self, client: redis.Redis, key: str, reported: int) -> None:
        script = pair(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.forget(key)
        script.later(100).turn("aa")
        script.join("aa", **{**KNEW, "leases": [[ticket]], "tokens": [[ticket, 100, reported]]})
        script.join("bb", **KNEW)
        assert script.ask(tokens=41) == []
        script.turn("aa", cancel=list(script.waiting()))
        assert len(script.ask(tokens=40)) == 1

    def test_tokens_that_are_known_are_not_counted_twice(self, client: redis.Redis) -> None:
        script = pair(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.join("aa", leases=[[ticket]], tokens=[[ticket, 0, 60]])
        assert len(script.ask(tokens=40)) == 1

    def test_the_spent_budget_is_the_most_that_anybody_knows(self, client: redis.Redis) -> None:
        script = lost(client, budget=100)
        assert script.join("aa", **KNEW, spent=40)["spent"] == 40
        assert script.join("bb", **KNEW, spent=30)["spent"] == 40
        assert script.join("aa", **KNEW, spent=50)["spent"] == 50

    def test_the_longest_lag_is_the_most_that_anybody_knows(self, client: redis.Redis) -> None:
        script = lost(client, starts=3)
        assert script.join("aa", **KNEW, lag_most=40)["lag_most"] == 40
        assert script.join("bb", **KNEW, lag_most=20)["lag_most"] == 40

    def test_starts_of_unknown_processes_count_as_long_as_those_of_the_farthest(self, client: redis.Redis) -> None:
        script = lost(client, starts=3)
        lost_at = script.now
        asks(script, lag_most=400)
        reply = script.later(LEASE).turn("aa")
        assert reply["at"] == lost_at + WINDOW + 400

    def test_grants_that_were_not_taken_are_asked_for_again(self, client: redis.Redis) -> None:
        script = pair(client)
        script.ask("aa")
        reply = script.join("aa", leases=[])
        assert "grants" not in reply
        assert reply["base"] >= 1
        assert script.held() == {}


class TestOperatorsLimits:
    def test_they_are_put_back(self, client: redis.Redis) -> None:
        script = lost(client)
        reply = script.join("aa", **KNEW, overrides={"slots": 2, "rev": 7})
        assert (reply["limits"]["slots"], reply["overrides"]) == (2, {"slots": 2, "rev": 7})

    def test_of_several_versions_the_latest_counts(self, client: redis.Redis) -> None:
        for first, second in ((7, 9), (9, 7)):
            script = lost(client)
            script.join("aa", **KNEW, overrides={"slots": first, "rev": first})
            script.join("bb", **KNEW, overrides={"slots": second, "rev": second})
            assert script.turn("aa")["limits"]["slots"] == 9

    def test_those_of_a_version_without_revisions_are_added(self, client: redis.Redis) -> None:
        script = lost(client)
        asks(script, overrides={"slots": 2})
        limits = asks(script, "bb", overrides={"slots": 3, "age_ms": 5000})["limits"]
        assert (limits["slots"], limits["age_ms"]) == (2, 5000)

    def test_those_that_were_set_since_the_loss_count(self, client: redis.Redis) -> None:
        script = lost(client)
        script.set_limits(slots=3)
        assert script.join("aa", **KNEW, overrides={"slots": 2, "rev": 7})["limits"]["slots"] == 3

    def test_a_part_that_was_lost_is_filled_in(self, client: redis.Redis) -> None:
        script = pair(client)
        script.set_limits(slots=3, starts=50)
        rev = int(client.hget(script.keys["limits"], "rev") or 0)
        client.hdel(script.keys["limits"], "starts")
        reply = script.join("aa", overrides={"slots": 2, "starts": 50, "rev": rev})
        assert (reply["limits"]["slots"], reply["limits"]["starts"]) == (3, 50)

    def test_a_server_that_was_behind_gets_the_later_ones(self, client: redis.Redis) -> None:
        script = pair(client)
        script.set_limits(slots=3)
        script.turn("aa")
        script.server = "promoted"
        script.turn("aa")
        reply = script.join("aa", **KNEW, overrides={"starts": 9, "rev": 5})
        assert (reply["limits"]["starts"], reply["limits"]["slots"]) == (9, 4)

    def test_so_does_one_that_took_the_data_of_a_replica(self, client: redis.Redis) -> None:
        script = pair(client)
        script.set_limits(slots=3)
        now = script.turn("aa")["now"]
        assert script.turn("aa", read=now + 1)["status"] == "join"
        assert script.join("aa", **KNEW, overrides={"slots": 2, "rev": 5}, _read=now)["limits"]["slots"] == 2

    def test_those_of_a_version_without_revisions_outlast_a_loss_of_the_state(self, client: redis.Redis) -> None:
        script = pair(client)
        client.hset(script.keys["limits"], "slots", 2)
        script.turn("aa")
        client.hdel(script.keys["state"], "sums")
        assert script.turn("aa")["status"] == "join"
        assert script.join("aa", **KNEW)["limits"]["slots"] == 2

    def test_limits_of_which_a_part_was_lost_are_dropped(self, client: redis.Redis) -> None:
        script = pair(client)
        script.set_limits(slots=3, starts=50)
        script.turn("aa")
        client.hdel(script.keys["limits"], "starts")
        assert script.turn("aa")["status"] == "join"
        assert script.join("aa", **KNEW)["limits"]["slots"] == 4


class TestSchema:
    def test_another_schema_waits_for_the_last_process(self, client: redis.Redis) -> None:
        script = pair(client)
        assert script.turn("cc")["status"] == "ok"
        reply = script.turn("cc", schema=2)
        assert (reply["status"], reply["schema"]) == ("schema", 1)
        script.close()
        script.later(2 * LEASE - 1)
        assert script.turn("cc", schema=2)["status"] == "schema"
        assert script.later(1).turn("cc", schema=2)["status"] == "join"
        script.join("cc", _schema=2)
        assert script.turn("aa")["status"] == "schema"

    def test_it_waits_while_one_listens(self, client: redis.Redis) -> None:
        script = pair(client)
        script.later(3 * LEASE)
        assert script.turn("cc", schema=2)["status"] == "schema"

    def test_the_last_window_counts_as_full(self, client: redis.Redis) -> None:
        script = Script(client, starts=3, lease_ms=1000)
        script.turn("aa")
        script.later(2000)
        took = script.now
        assert script.turn("aa", schema=2)["status"] == "join"
        script.join("aa", _schema=2)
        reply = script.later(1000).turn("aa", schema=2, ask=[[script.ticket(), 0]])
        assert (granted(reply), reply["at"]) == ([], took + WINDOW)


class TestErrors:
    @pytest.mark.parametrize(
        ("option", "value", "code"), [("maxmemory", "1", "OOM"), ("min-replicas-to-write", "1", "NOREPLICAS")]
    )
    def test_a_server_that_refuses_writes_has_lost_nothing(
        self, client: redis.Redis, option: str, value: str, code: str
    ) -> None:
        script = pair(client)
        epoch = script.turn("aa")["epoch"]
        client.config_set(option, value)
        try:
            with pytest.raises(redis.ResponseError) as refused:
                script.turn("aa")
        finally:
            client.config_set(option, "0")
        assert "SCRIPTERROR" not in str(refused.value)
        assert code in str(refused.value) or isinstance(refused.value, redis.exceptions.OutOfMemoryError)
        assert script.join("aa")["epoch"] == epoch

    def test_a_command_that_fails_half_way_begins_an_epoch(self, client: redis.Redis) -> None:
        script = pair(client)
        epoch = script.turn("aa")["epoch"]
        with pytest.raises(redis.ResponseError, match="SCRIPTERROR"):
            script.turn("aa", ask=[["no ticket"]])
        assert script.client.hget(script.keys["state"], "epoch") is None
        assert script.turn("bb")["status"] == "join"
        assert script.join("bb", **KNEW)["epoch"] != epoch
