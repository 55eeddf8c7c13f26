"""Runs' entries: read from any release, found by what is typed, and shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from brimful.cli.runs.tail import lines
from brimful.cli.runs.text import details, table
from brimful.cli.style import ago
from brimful.dispatch.ledger import Result
from brimful.dispatch.purge import StoredRun
from brimful.errors import UsageError
from brimful.outcome import Cause, Failure, Outcome
from brimful.run.display.progress import Progress, plain_line
from brimful.run.display.terminal import lines as terminal_lines
from brimful.state.runs.entry import LOST_S, Asked, RunEntry, RunState, parse_entry
from brimful.state.runs.heartbeat import Heartbeat
from brimful.state.runs.registry import find_run

RAW = {"state": "running", "said": "1000", "started": "900", "done": "3", "total": "9", "failed": "1", "weight": "2"}
ENTRY = parse_entry("0123456789abcdef", RAW | {"user": "ann", "host": "lab", "output": "/data/out.jsonl"}, 1001.0)
LEFT = StoredRun(ENTRY.run, 3, 2)


def test_an_entry_of_any_release_is_read() -> None:
    assert (ENTRY.silent_s, ENTRY.total, ENTRY.weight, ENTRY.live, ENTRY.state_now) == (1.0, 9, 2.0, True, "running")
    later = parse_entry("r", RAW | {"state": "dreaming", "colour": "red", "done": "many", "causes": "[1]"}, 1001.0)
    assert (later.state_now, later.done, later.live, later.failures) == ("dreaming", 0, True, {})
    assert "dreaming" in table([later], [])
    assert "dreaming" in details(later, LEFT)
    assert parse_entry("r", {}, 1e9).lost
    assert parse_entry("r", {"output": "a\x1b[2Jb\nc é"}, 0).output == "a?[2Jb?c é"
    counted = replace(ENTRY, causes='{"timeout": 2, "bad_request": 9}')
    assert counted.as_json()["causes"] == {"bad_request": 9, "timeout": 2}
    assert json.loads(json.dumps(counted.as_json()))["state"] == "running"


def test_a_silent_run_is_lost_and_one_that_has_ended_is_not() -> None:
    silent = parse_entry("r", RAW, 1000 + LOST_S)
    assert (silent.lost, silent.live, silent.state_now) == (True, False, RunState.LOST)
    assert not parse_entry("r", RAW, 1000 + LOST_S - 0.1).lost
    ended = parse_entry("r", RAW | {"ended": "1000", "state": "finished"}, 9e9)
    assert (ended.lost, ended.live, ended.state_now) == (False, False, "finished")


@pytest.mark.parametrize("given", ["0123", "0123456789abcdef", "batch_77", "batch_77aa"])
def test_a_run_is_found_by_its_id_its_batch_and_their_beginnings(given: str) -> None:
    entries = [replace(ENTRY, batch="batch_77aa"), RunEntry("evals.9123")]
    assert find_run(given, entries, ["77"], "here", fleet="") == ENTRY.run
    for typed in ("91", "evals.9"):
        assert find_run(typed, entries, [], "here", fleet="evals") == "evals.9123"
    assert find_run("77", entries, ["77", "778"], "here", fleet="") == "77", "an id is never ambiguous"


@pytest.mark.parametrize(
    ("given", "fleet", "said"),
    [
        ("91", "", r"^run evals.9123 belongs to the fleet evals, but .* unnamed fleet: set BRIMFUL_FLEET=evals$"),
        ("evals.9123", "b", "^run evals.9123 belongs to the fleet evals, but this command is for the fleet b: "),
        ("batch_9", "b", "^run evals.9123 belongs to the fleet evals"),
        ("0123", "evals", "belongs to the unnamed fleet, .* the fleet evals: unset BRIMFUL_FLEET$"),
        (
            "8",
            "",
            "^runs a.81 and evals.82 belong to the fleet evals and the fleet a, .*: set BRIMFUL_FLEET=evals or set",
        ),
        ("91234", "", "^no run 91234 in here: `brimful runs list`"),
    ],
)
def test_a_run_of_another_fleet_is_refused_with_the_way_out(given: str, fleet: str, said: str) -> None:
    entries, others = [ENTRY, RunEntry("evals.9123", batch="batch_9")], ["a.81", "evals.82"]
    with pytest.raises(UsageError, match=said):
        find_run(given, entries, others, "here", fleet=fleet)


def test_a_fleet_s_own_run_is_meant_where_others_begin_alike() -> None:
    entries = [ENTRY, RunEntry("evals.0123ff")]
    assert find_run("01", entries, ["b.01"], "here", fleet="evals") == "evals.0123ff"
    assert find_run("01", entries, ["b.01"], "here", fleet="") == ENTRY.run


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("01", r"'01' begins the ids of several runs in here: 0123456789abcdef and 01ff; type more"),
        ("0123456789abcdee", r"no run 0123456789abcdee in here: did you mean 0123456789abcdef\? `brimful runs list`"),
        ("zzz", r"no run zzz in here: `brimful runs list` shows all"),
    ],
)
def test_a_run_that_is_not_found_is_named_with_those_that_may_be_meant(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_run(given, [ENTRY, RunEntry("01ff")], [], "here", fleet="")


def test_an_empty_id_does_not_name_the_only_run() -> None:
    with pytest.raises(UsageError, match="the run's id is empty"):
        find_run("", [ENTRY], [], "here", fleet="")


def test_the_table_and_the_details() -> None:
    lost = replace(ENTRY, run="evals.2", silent_s=600.0, rate=80.0, batch="batch_1", caller="bob")
    text = table([replace(ENTRY, rate=1234.0), lost], [StoredRun("map", 1, 0)])
    head, first, second, other = text.splitlines()
    assert head.split() == ["run", "state", "prompts", "failed", "rate", "started", "by", "what"]
    assert first.split()[:5] == [ENTRY.run, "running", "4/9", "1", "1,234/min"]
    assert first.endswith("ann@lab  /data/out.jsonl")
    assert "lost 10 min ago" in second
    assert "80/min" not in second
    assert second.endswith("bob@lab  batch_1")
    assert other == "map  no entry: 1 shard without outcome, 0 outcomes not collected"
    shown = details(replace(ENTRY, causes='{"timeout": 1}', state="held", ask="hold", asked_by="bea@desk"), LEFT)
    assert "state      held by bea@desk" in shown
    assert "3 of 9 sampled, 1 failed (timeout 1)" in shown
    assert "in Redis 3 shards without outcome, 2 outcomes not collected" in shown
    assert "by ann@lab, process 0" in shown
    cancelled = replace(ENTRY, state="cancelled", ended=ENTRY.started, exit_code=130)
    assert "exit code 130; the `brimful run` that began it, typed again, continues it" in details(cancelled, LEFT)
    assert "its front door goes on with it" in details(lost, LEFT)
    assert "goes on" not in details(replace(cancelled, batch="batch_1"), LEFT)
    assert [ago(seconds) for seconds in (0.5, 42, 300, 9000, 300000)] == [
        *("now", "42 s ago", "5 min ago", "2 h ago", "3 d ago")
    ]


@pytest.mark.parametrize("state", [*RunState, "dreaming"])
def test_every_state_is_shown_on_a_coloured_terminal(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setattr("brimful.cli.style.coloured", lambda: True)
    assert state in table([replace(ENTRY, state=state)], [])


def test_what_is_asked_holds_until_something_else_is_asked() -> None:
    heard: list[tuple[Asked, str]] = []
    beat = Heartbeat(dict, lambda asked, by: heard.append((asked, by)))
    rounds = [("1", "cancel", "x"), ("1", None, None), ("1", "hold", "bea"), ("1", "hold", "bea"), (None, None, None)]
    rounds += [("1", "sing", "bea"), ("1", "", "cy"), ("1", "cancel", "")]
    assert [beat.take([each]) for each in rounds] == [False, False, True, False, False, False, True, True]
    assert heard == [(Asked.HOLD, "bea"), (Asked.NOTHING, "cy"), (Asked.CANCEL, "")], "not what a try before was asked"
    of_batch = Heartbeat(dict, lambda asked, by: heard.append((asked, by)), keep_ask=True)
    assert of_batch.take([("1", "hold", "bea")])
    assert heard[-1] == (Asked.HOLD, "bea")


def test_tail_shows_texts_only_when_asked() -> None:
    completion = {
        "choices": [{"index": 0, "text": "secret\x1b[2J", "finish_reason": "stop\x1b[2J"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }
    manifest = '[[4, "p4", 0, [0]]]'
    good = Result("1-0", "q", manifest, Outcome("q", completion, attempts=1, provider_s=0.5))
    assert lines(good, text=False) == ["p4  1 rollout, 3 tokens (stop?[2J), 0.5 s, 1 attempt"]
    assert lines(good, text=True)[1] == r"  0.0 'secret\x1b[2J'"
    failure = Failure(Cause.BAD_REQUEST, "400: cannot read 'my prompt'", 400, permanent=True)
    bad = Result("1-1", "q", manifest, Outcome("q", failure=failure, attempts=2))
    assert lines(bad, text=False) == ["p4  bad_request 400, 0.0 s, 2 attempts"]
    assert lines(bad, text=True) == ["p4  bad_request 400, 0.0 s, 2 attempts: 400: cannot read 'my prompt'"]
    for unfit in (
        Result("1-2", "q", manifest, Outcome("q", {"choices": []})),
        Result("1-1", "q", '[["p4"]]', bad.outcome),
    ):
        assert "does not fit" in lines(unfit, text=False)[0]


def test_the_display_of_a_held_run_says_so() -> None:
    progress = Progress(seconds=9, requests=9, total=9, succeeded=3, failed=0, rollouts=3, new_rollouts=3, tokens=5)
    assert "held by bea@desk" in plain_line(replace(progress, held_by="bea@desk"), None, 12.0, None)
    narrow = Console(width=60, file=io.StringIO())
    shown = [line.plain for line in terminal_lines(narrow, replace(progress, held_by="bea@desk"), None, 12.0, None)]
    assert shown[-1] == "held: `brimful runs resume` goes on   Ctrl-C ends it"
    assert any("held by bea@desk" in line for line in shown)
    assert "held" not in plain_line(replace(progress, held_by="bea@desk", stopping=True), None, 12.0, None)
