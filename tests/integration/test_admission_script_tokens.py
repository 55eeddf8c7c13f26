"""Rules of the admission's script, command by command: the token window and the budget."""

from __future__ import annotations

import redis

from support.admission_script import Script, granted

WINDOW = 5500
"""Window and guard."""


class TestWindow:
    def test_what_does_not_fit_waits_until_enough_has_left(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100, slots=9)
        first = script.now
        assert len(script.ask(tokens=30)) == 1
        script.later(1000).ask(tokens=30)
        script.later(1000).ask(tokens=30)
        reply = script.later(100).turn(ask=[[script.ticket(tokens=60), 0]])
        assert (granted(reply), reply["at"]) == ([], first + 1000 + WINDOW), "the first two must leave"
        script.now = first + 1000 + WINDOW - 1
        assert script.look() == []
        assert len(script.later(1).look()) == 1

    def test_all_of_it_may_be_used(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        assert len(script.ask(tokens=60)) == 1
        assert len(script.ask(tokens=40)) == 1
        assert script.ask(tokens=1) == []

    def test_several_of_one_turn_count(self, client: redis.Redis) -> None:
        assert len(Script(client, tokens=100).ask(tokens=40, count=4)) == 2

    def test_nothing_overtakes_one_that_waits(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        script.ask(tokens=60)
        assert script.ask(tokens=60) == []
        assert script.ask(tokens=1) == []

    def test_one_that_never_fits_runs_alone(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        assert len(script.ask(tokens=1)) == 1
        assert script.ask(tokens=101) == []
        assert len(script.later(WINDOW).look()) == 1
        assert script.ask(tokens=1) == []

    def test_usage_takes_the_place_of_the_estimate(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        assert script.ask(tokens=90) == []
        script.later(10)
        assert len(granted(script.end(ticket, used=10))) == 1
        assert script.ask(tokens=1) == []

    def test_usage_above_the_estimate_counts(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.end(ticket, used=90)
        assert script.ask(tokens=11) == []
        assert len(script.later(WINDOW).look()) == 1
        assert len(script.ask(tokens=89)) == 1

    def test_a_usage_of_nothing_frees_all_of_it(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.end(ticket, used=0)
        assert len(script.ask(tokens=100)) == 1

    def test_without_a_usage_the_estimate_stands(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.end(ticket, used=-1)
        assert script.ask(tokens=41) == []

    def test_a_grant_that_was_given_back_does_not_count(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.end(ticket, undo=1)
        assert len(script.ask(tokens=100)) == 1

    def test_nor_does_one_that_was_lost_and_given_back(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        (ticket,) = script.ask(tokens=60)
        script.later(4000)
        assert script.end(ticket, undo=1)["lost"] == [ticket]
        assert len(script.ask(tokens=100)) == 1

    def test_a_usage_that_is_reported_too_late_changes_nothing(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100, lease_ms=20_000)
        (ticket,) = script.ask(tokens=60)
        script.later(WINDOW).ask(tokens=50)
        script.end(ticket, used=1000)
        assert len(script.ask(tokens=50)) == 1

    def test_a_limit_of_one(self, client: redis.Redis) -> None:
        script = Script(client, tokens=1)
        (ticket,) = script.ask(tokens=1)
        assert script.turn()["tokens_used"] == 1
        assert script.ask(tokens=1) == []
        (ticket,) = granted(script.end(ticket, used=0))
        assert script.ask(tokens=1) == []
        assert len(granted(script.end(ticket, undo=1))) == 1

    def test_a_ticket_without_tokens_takes_none(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        script.ask(tokens=100)
        assert len(script.ask(tokens=0)) == 1

    def test_no_limit_reports_none(self, client: redis.Redis) -> None:
        assert "tokens_used" not in Script(client).turn()

    def test_no_limit_keeps_nothing(self, client: redis.Redis) -> None:
        script = Script(client, tokens=0)
        for ticket in script.ask(tokens=60, count=3):
            script.end(ticket, used=10)
        assert client.exists(script.keys["tokens"], script.keys["amounts"]) == 0

    def test_what_left_the_window_is_forgotten(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        script.ask(tokens=30, count=2)
        script.later(WINDOW).ask(tokens=30)
        assert client.zcard(script.keys["tokens"]) == client.hlen(script.keys["amounts"]) == 1

    def test_a_start_without_a_slot_takes_none(self, client: redis.Redis) -> None:
        script = Script(client, tokens=100)
        script.ask(queue="s", tokens=90)
        assert len(script.ask(tokens=100)) == 1


class TestBudget:
    def test_what_runs_is_held(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (ticket,) = script.ask(tokens=60)
        reply = script.turn(ask=[[script.ticket(tokens=60), 0]])
        assert granted(reply) == []
        assert "refused" not in reply
        assert "at" not in reply, "it waits for an end"
        reply = script.end(ticket, used=40)
        assert reply["spent"] == 40
        assert len(granted(reply)) == 1

    def test_several_of_one_turn_are_held(self, client: redis.Redis) -> None:
        assert len(Script(client, budget=100).ask(tokens=40, count=4)) == 2

    def test_all_of_it_may_be_held(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        assert len(script.ask(tokens=60)) == 1
        assert len(script.ask(tokens=40)) == 1

    def test_what_is_spent_stays_spent(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        for used, spent in ((30, 30), (0, 30), (30, 60)):
            (ticket,) = script.ask(tokens=35)
            assert script.end(ticket, used=used)["spent"] == spent
        assert len(script.later(60_000).ask(tokens=40)) == 1

    def test_without_a_usage_the_estimate_is_spent(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (ticket,) = script.ask(tokens=60)
        assert script.end(ticket)["spent"] == 60

    def test_one_that_does_not_fit_is_refused_and_holds_nobody_up(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (ticket,) = script.ask(tokens=60)
        script.end(ticket, used=60)
        large, small = script.ticket(tokens=41), script.ticket(tokens=40)
        reply = script.turn(ask=[[large, 0], [small, 0]])
        assert (reply["refused"], granted(reply)) == ([large], [small])

    def test_one_that_may_fit_later_is_not_refused(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (ticket,) = script.ask(tokens=60)
        assert "refused" not in script.turn(ask=[[script.ticket(tokens=60), 0]])
        assert "refused" in script.end(ticket, used=60)

    def test_a_slot_that_cools_down_holds_nothing(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (ticket,) = script.ask(tokens=60)
        script.end(ticket, used=50, cooldown=1000)
        large = script.ticket(tokens=51)
        assert script.turn(ask=[[large, 0]])["refused"] == [large]
        assert len(script.ask(tokens=50)) == 1

    def test_another_process_is_told_to_ask_for_its_refusal(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        script.join("bb")
        script.listen("aa", "bb")
        (ticket,) = script.ask(tokens=60)
        large = script.ticket("bb", tokens=60)
        script.turn("bb", ask=[[large, 0]])
        reply = script.end(ticket, used=60)
        assert "refused" not in reply
        assert script.turn("bb")["refused"] == [large]

    def test_a_lease_that_ended_has_spent_its_estimate_once(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (lost,) = script.ask(tokens=60)
        (cooling,) = script.ask(tokens=10)
        assert script.end(cooling, used=10, cooldown=500)["spent"] == 10
        assert script.later(3999).turn()["spent"] == 10
        assert script.later(1).turn()["spent"] == 70
        assert script.end(lost, used=5)["spent"] == 70
        assert script.later(1).turn()["spent"] == 70

    def test_also_of_the_smallest_budget(self, client: redis.Redis) -> None:
        script = Script(client, budget=1)
        assert len(script.ask(tokens=1)) == 1
        assert script.later(4000).turn()["spent"] == 1

    def test_one_that_was_given_back_spends_nothing(self, client: redis.Redis) -> None:
        script = Script(client, budget=100)
        (ticket,) = script.ask(tokens=60)
        assert script.end(ticket, undo=1)["spent"] == 0

    def test_no_budget_counts_nothing(self, client: redis.Redis) -> None:
        script = Script(client, budget=0)
        (ticket,) = script.ask(tokens=60)
        assert "spent" not in script.end(ticket, used=60)
        (ticket,) = script.ask(tokens=60)
        script.later(4000).turn()
        script.set_limits(budget=100)
        assert script.turn()["spent"] == 0
