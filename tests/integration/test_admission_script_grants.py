"""Rules of the admission's script, command by command: what is granted in a turn, and how its process receives it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from support.admission_script import Script, granted

SLOTS, STARTS = 1, 2
"""What a request was refused by."""
WINDOW = 5500
"""Window and guard."""
HOLD = 10_000


def pair(client: redis.Redis, *, workers: dict[str, str] | None = None, **limits: int) -> Script:
    """``aa`` and ``bb``, which listen, know each other, and describe themselves as in ``workers``."""
    script = Script(client, **{"ramp_ms": 0, **limits})
    script.listen("aa", "bb")
    for process in ("aa", "bb"):
        fields = {"_worker": (workers or {}).get(process, '{"host":"h"}')}
        script.join(process, **fields)
    for process in ("aa", "bb"):
        script.turn(process, members=99)
    for process in ("aa", "bb"):
        script.published(process)
    return script


def pushed(script: Script, process: str = "bb") -> list[dict[str, Any]]:
    """What was sent to this process alone."""
    return [message for channel, message in script.published(process) if channel == process]


def waits(script: Script, process: str, count: int = 1, *, queue: str = "b", tokens: int = 0) -> list[str]:
    """Tickets that wait for the end of a pause, a second from now."""
    tickets = [script.ticket(process, queue, tokens) for _ in range(count)]
    script.turn(process, ask=[[ticket, 0] for ticket in tickets], pause=[1000, "wait"])
    return tickets


def pending(script: Script, process: str) -> list[str] | None:
    """Granted tickets that the process has not confirmed, as the server keeps them."""
    kept: Any = script.client.hget(script.keys["inbox"], process)
    return None if kept is None else [grant[1] for grant in json.loads(kept)]


class TestLag:
    """A start of a process that is far from Redis counts for longer, and may be used for as much longer."""

    FAR = '{"lag_ms":200}'

    def test_it_goes_with_the_grant(self, client: redis.Redis) -> None:
        script = pair(client, starts=9, workers={"aa": self.FAR})
        ticket = script.ticket()
        reply = script.turn(ask=[[ticket, 0]])
        assert reply["grants"] == [[1, ticket, script.now, 0, 200]]
        assert reply["lag_most"] == 320
        assert script.starts() == {ticket: script.now + 200}
        assert script.held() == {ticket: script.now + 4000}

    def test_to_another_process_too(self, client: redis.Redis) -> None:
        script = pair(client, starts=9, workers={"bb": self.FAR})
        (ticket,) = waits(script, "bb")
        at = script.later(1000).now
        (mine,) = script.turn("aa", ask=[[script.ticket(), 0]])["grants"]
        assert mine[2:] == [at], "it is near"
        (push,) = pushed(script)
        assert push == {"now": at, "epoch": script.turn()["epoch"], "grants": [[1, ticket, at, 0, 200]]}
        assert script.starts()[ticket] == at + 200

    def test_with_the_deaths_of_a_named_request(self, client: redis.Redis) -> None:
        script = Script(client, starts=9)
        first = script.ticket("bb", name="abc")
        script.turn("bb", ask=[[first, 0]])
        script.later(8000).join("aa", _worker=self.FAR)
        ticket = script.ticket(name="abc")
        assert script.turn(ask=[[ticket, 0]])["grants"] == [[1, ticket, script.now, 1, 200]]

    def test_of_a_start_without_a_slot(self, client: redis.Redis) -> None:
        script = pair(client, starts=9, workers={"aa": self.FAR})
        ticket = script.ticket(queue="s")
        assert script.turn(ask=[[ticket, 0]])["grants"] == [[1, ticket, script.now, 0, 200]]
        assert script.starts() == {ticket: script.now + 200}

    def test_its_tokens_count_as_long(self, client: redis.Redis) -> None:
        script = pair(client, tokens=100, workers={"aa": self.FAR})
        (first,) = script.ask(tokens=100)
        assert script.held() == {first: script.now + 4000}
        reply = script.turn(ask=[[script.ticket(tokens=1), 0]])
        assert reply["at"] == script.now + WINDOW + 200

    def test_not_longer_than_a_lease(self, client: redis.Redis) -> None:
        script = pair(client, starts=9, workers={"aa": '{"lag_ms":9000}'})
        (ticket,) = script.ask()
        assert script.starts() == {ticket: script.now + 4000}

    def test_without_a_limit_nothing_counts(self, client: redis.Redis) -> None:
        script = pair(client, workers={"aa": self.FAR})
        ticket = script.ticket()
        assert script.turn(ask=[[ticket, 0]])["grants"] == [[1, ticket, script.now]]


class TestDelivery:
    def test_grants_are_numbered_and_given_until_they_are_confirmed(self, client: redis.Redis) -> None:
        script = pair(client)
        first, second = script.ticket(), script.ticket()
        begun = script.now
        assert script.turn(ask=[[first, 0]])["grants"] == [[1, first, begun]]
        reply = script.later(5).turn(ask=[[second, 0]], seen=0)
        assert reply["grants"] == [[1, first, begun], [2, second, begun + 5]]
        assert script.turn(seen=0)["grants"] == reply["grants"]
        assert pending(script, "aa") == [first, second]
        assert granted(script.turn(seen=1)) == [second]
        assert pending(script, "aa") == [second]
        assert "grants" not in script.turn(seen=2)
        assert pending(script, "aa") is None

    def test_a_confirmed_one_is_not_kept_beside_a_new_one(self, client: redis.Redis) -> None:
        script = pair(client)
        (first,) = script.ask()
        second = script.ticket()
        assert granted(script.turn(ask=[[second, 0]], seen=1)) == [second]
        assert pending(script, "aa") == [second]
        assert first in script.held()

    def test_another_process_is_sent_its_own_and_keeps_them_until_then(self, client: redis.Redis) -> None:
        script = pair(client)
        tickets = waits(script, "bb", 2)
        assert "grants" not in script.later(1000).turn("aa")
        (push,) = pushed(script)
        assert [grant[:2] for grant in push["grants"]] == [[1, tickets[0]], [2, tickets[1]]]
        assert pushed(script, "aa") == []
        assert pending(script, "bb") == tickets
        assert granted(script.turn("bb")) == tickets

    def test_more_are_added_to_those_it_has_not_confirmed(self, client: redis.Redis) -> None:
        script = pair(client, slots=20)
        tickets = waits(script, "bb")
        script.later(1000).turn("aa")
        waits(script, "aa")
        more = script.ticket("bb")
        script.turn("bb", ask=[[more, 0]], seen=0)
        script.later(1000).turn("aa")
        assert pending(script, "bb") == [*tickets, more]
        assert [grant[0] for push in pushed(script) for grant in push["grants"]] == [1, 2]

    def test_when_it_has_all_it_may_get_it_is_asked_to_confirm_them(self, client: redis.Redis) -> None:
        script = pair(client)
        tickets = waits(script, "bb", 3)
        script.later(1000).turn("aa")
        (push,) = pushed(script)
        assert [grant[1] for grant in push["grants"]] == tickets[:2]
        assert push["at"] == script.now
        asked: Any = script.client.hget(script.keys["commands"], "bb asked")
        assert int(asked) == script.now

    def test_one_fewer_needs_no_confirmation(self, client: redis.Redis) -> None:
        script = pair(client)
        waits(script, "bb", 1)
        script.later(1000).turn("aa")
        (push,) = pushed(script)
        assert "at" not in push
        assert script.client.hget(script.keys["commands"], "bb asked") is None


class TestAsksAgain:
    """Only the process whose ticket is next looks again when something becomes free."""

    def full(self, client: redis.Redis) -> tuple[Script, int]:
        """``bb`` waits until a start leaves the window at this time."""
        script = pair(client, starts=1)
        script.ask("aa")
        waits(script, "bb")
        assert pushed(script) == []
        return script.later(1000), script.now - 1000 + WINDOW

    def test_another_process_gets_one_message(self, client: redis.Redis) -> None:
        script, leaves = self.full(client)
        assert "at" not in script.turn("aa")
        assert pushed(script) == [{"now": script.now, "epoch": script.turn()["epoch"], "at": leaves}]
        assert "at" not in script.later(1).turn("aa")
        assert pushed(script) == []

    def test_it_looks_in_its_own_turn(self, client: redis.Redis) -> None:
        script, leaves = self.full(client)
        assert script.turn("bb")["at"] == leaves
        assert pushed(script) == []
        script.turn("aa")
        assert pushed(script) == [], "it looks then anyway"

    @pytest.mark.parametrize(
        ("window_ms", "apart", "together"),
        [(5000, 27, True), (5000, 28, False), (60_000, 50, True), (60_000, 51, False)],
    )
    def test_starts_that_leave_the_window_nearly_together_are_waited_for(
        self, client: redis.Redis, window_ms: int, apart: int, *, together: bool
    ) -> None:
        script = pair(client, starts=2, slots=8, window_ms=window_ms)
        leaves = script.now + window_ms + 500
        script.ask()
        script.later(apart).ask()
        reply = script.turn(ask=[[script.ticket(), 0] for _ in range(2)])
        assert reply["at"] == leaves + (apart if together else 0)

    def test_and_another_one_when_it_waits_again(self, client: redis.Redis) -> None:
        script, leaves = self.full(client)
        script.turn("aa")
        (ticket,) = script.waiting()
        script.turn("bb", cancel=[ticket])
        script.turn("cc", ask=[[script.ticket("bb"), 0]])
        assert [push.get("at") for push in pushed(script)] == [leaves, leaves]

    def test_of_a_start_without_a_slot_too(self, client: redis.Redis) -> None:
        script = pair(client, starts=1)
        script.ask("aa")
        leaves = script.now + WINDOW
        assert script.turn("bb", ask=[[script.ticket("bb", "s"), 0]])["at"] == leaves
        reply = script.turn("bb", pause=[WINDOW + 1, "wait"])
        assert reply["at"] == leaves + 1, "the end of the pause"

    def test_the_process_of_a_refused_request_looks_at_once(self, client: redis.Redis) -> None:
        script = pair(client, budget=10)
        (ticket,) = waits(script, "bb", tokens=11)
        at = script.later(1001).now
        assert "refused" not in script.turn("aa")
        assert [push.get("at") for push in pushed(script)] == [at]
        assert script.turn("bb")["refused"] == [ticket]

    def test_a_lease_that_ends_soon_is_waited_for(self, client: redis.Redis) -> None:
        script = pair(client, slots=2, lease_ms=6000)
        first, _ = script.ask(count=2)
        script.end(first, cooldown=2000)
        assert script.turn(ask=[[script.ticket(), 0] for _ in range(2)])["at"] == script.now + 2000
        script = pair(client, slots=2, lease_ms=6000)
        first, _ = script.ask(count=2)
        script.end(first, cooldown=2001)
        assert "at" not in script.turn(ask=[[script.ticket(), 0] for _ in range(2)])

    @pytest.mark.parametrize(("cooldown", "wait"), [(300, 300), (900, 500)])
    def test_or_a_raise_of_learnt_slots_where_that_is_sooner(
        self, client: redis.Redis, cooldown: int, wait: int
    ) -> None:
        script = pair(client, slots=4, lease_ms=100_000)
        held = script.ask(count=3)
        script.answer(held.pop(), refused=SLOTS)
        script.turn(ask=[[script.ticket(), 0] for _ in range(3)])
        script.later(HOLD - 500).turn()
        assert len(script.held()) == 2
        assert script.end(held.pop(), cooldown=cooldown)["at"] == script.now + wait


class TestLimits:
    def test_batch_that_waits_for_the_reserve_raises_no_learnt_limit(self, client: redis.Redis) -> None:
        """There is room for others."""
        script = pair(client, slots=8, lease_ms=1_000_000)
        held = script.ask(count=5)
        assert script.answer(held.pop(), refused=SLOTS)["learnt"] == {"slots": 4}
        script.end(held.pop(), verdict=-1)
        script.set_limits(reserve_slots=1)
        script.turn(ask=[[script.ticket(), 0] for _ in range(4)])
        assert script.later(2 * HOLD).turn()["learnt"] == {"slots": 4}
        assert list(script.held()) == held

    def test_what_is_raised_may_be_for_batch_beside_the_reserve(self, client: redis.Redis) -> None:
        script = pair(client, slots=8, lease_ms=1_000_000)
        held = script.ask(count=4)
        script.ask(queue="i")
        assert script.answer(held.pop(), refused=SLOTS)["learnt"] == {"slots": 4}
        script.set_limits(reserve_slots=1)
        script.turn(ask=[[script.ticket(), 0] for _ in range(3)])
        assert len(granted(script.later(HOLD).turn())) == 1
        assert script.turn()["learnt"] == {"slots": 5}

    def test_batch_that_waits_for_the_reserve_of_starts_raises_none(self, client: redis.Redis) -> None:
        script = pair(client, starts=20, slots=100, lease_ms=1_000_000)
        for ticket in script.ask(count=10)[:3]:
            reply = script.answer(ticket, refused=STARTS)
        assert reply["learnt"] == {"starts": 15}
        script.set_limits(reserve_starts=10)
        assert len(script.later(2 * HOLD).ask(count=6)) == 5
        reply = script.turn()
        assert (reply["learnt"], reply["at"]) == ({"starts": 15}, script.now + WINDOW)
        assert len(script.ask(queue="i", count=12)) == 11, "the window is full, and the hold has passed"

    def test_a_start_that_is_raised_may_be_for_batch_beside_the_reserve(self, client: redis.Redis) -> None:
        script = pair(client, starts=20, slots=100, lease_ms=1_000_000)
        for ticket in script.ask(count=10)[:3]:
            script.answer(ticket, refused=STARTS)
        script.later(2 * HOLD - 1)
        assert len([*script.ask(count=14), *script.ask(queue="i")]) == 15
        script.set_limits(reserve_starts=1)
        assert script.ask() == []
        reply = script.later(1).turn()
        assert (reply["learnt"], len(granted(reply))) == ({"starts": 15}, 1)

    def test_without_a_limit_no_start_is_counted(self, client: redis.Redis) -> None:
        script = pair(client)
        script.ask()
        assert (script.turn()["used"], script.starts()) == (0, {})

    def test_the_window_as_it_was_is_kept_until_the_epoch_is_open(self, client: redis.Redis) -> None:
        script = pair(client, starts=5)
        (ticket,) = script.ask()
        script.client.hdel(script.keys["state"], "epoch")
        old = script.ticket()
        knew = {"alive": 2, "members": ["aa", "bb"], "used": 1, "used_age_ms": 0, "tokens": []}
        script.join("aa", **knew, leases=[[ticket]], starts=[[ticket, 0], [old, 90_000]])
        assert set(script.starts()) == {ticket, old}
        script.join("bb", **knew, starts=[])
        assert set(script.starts()) == {ticket}

    def test_all_of_the_window_counts_and_no_more(self, client: redis.Redis) -> None:
        script = pair(client, starts=5)
        script.ask()
        assert script.later(WINDOW - 1).turn()["used"] == 1
        assert script.later(1).turn()["used"] == 0
