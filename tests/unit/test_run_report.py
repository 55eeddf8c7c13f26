"""``brimful report``: the page of a run, its data and its figures."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brimful.errors import InputError, UsageError
from brimful.outcome import Cause, Failure
from brimful.packing.units import Unit
from brimful.run.input.sweep.sweep import Sweep
from brimful.run.output.paths import OutputFormat
from brimful.run.output.records import dump_line
from brimful.run.report.charts import Series, chart
from brimful.run.report.columns import MOST_WORDS
from brimful.run.report.overview import tiles
from brimful.run.report.page import write_report
from brimful.run.report.reading import read_run
from brimful.run.report.serve import ReportServer
from support.fake_driver import FakeDriver
from support.pages import Page
from support.runs import options, records, run, write_lines

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def _answer(unit: Unit, prompt: int, choice: int) -> Failure | tuple[str, str]:
    if unit.line % 5 == 3:
        return Failure(Cause.CONTENT_FILTER, f"400: {HOSTILE}", 400, permanent=True)
    return f"{HOSTILE} \ud800 {unit.line}.{choice} " * unit.line, "length" if unit.line % 2 else "stop"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "out.jsonl"
    lines = [{"id": f"p{line}", "prompt": f"Say {line}", "n": 3} for line in range(20)]
    run(options(write_lines(tmp_path / "in.jsonl", lines), out=out), FakeDriver(_answer, reverse=True))
    return out


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))


def test_the_page_is_self_contained_and_runs_no_script_but_its_own(out: Path) -> None:
    page = write_report(out)
    assert page == out.with_name("out.jsonl.report.html")
    read = Page(page)
    elements = _Elements()
    elements.feed(read.text)
    scripts = [attributes.get("type") for tag, attributes in elements.attributes if tag == "script"]
    assert scripts.count(None) == 1
    assert set(scripts) == {None, "text/plain"}
    for tag, attributes in elements.attributes:
        assert tag not in ("img", "link", "iframe", "object")
        assert not [name for name in attributes if name in ("src", "href", "style") or name.startswith("on")]
    assert "alert(" not in read.text.replace(read.script, "")
    assert set(re.findall(r"https?://[^\s\"']+", read.text)) == {"http://www.w3.org/2000/svg"}
    policy = next(attributes["content"] for tag, attributes in elements.attributes if "http-equiv" in attributes)
    digest = base64.b64encode(hashlib.sha256(read.script.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_counts_equal_the_summary_failures_included(out: Path) -> None:
    figures = read_run(out).figures
    assert figures.sidecar is not None
    summary = figures.sidecar.tries[-1]["summary"]
    assert figures.counts.rollouts == summary["rollouts"] == 48
    assert (figures.asked, figures.failed) == (60, 12)
    assert figures.lines == summary["requests"] == 20
    assert figures.sampled_lines == summary["succeeded"] == 16
    assert figures.failed_lines == summary["failed"] == 4
    assert dict(figures.causes) == summary["failed_by_cause"] == {"content_filter": 4}
    text = Page(write_report(out)).text
    assert '<b>20</b> <span>prompts</span><small><span class="bad">4 failed</span></small>' in text
    assert '<b>48</b> <span>rollouts</span><small><span class="bad">12 failed</span>, 24 truncated</small>' in text


def test_rollouts_and_failures_stand_side_by_side_in_the_order_of_the_input(out: Path) -> None:
    page = Page(write_report(out))
    there = {(record["id"], record["choice_index"]): record["text"] for record in records(out)}
    for line, group in enumerate(page.groups):
        assert (group["id"], group["line"], group["prompt"]) == (f"p{line}", line + 1, f"Say {line}")
        assert [cell["choice"] for cell in group["cells"]] == [0, 1, 2]
        for cell in group["cells"]:
            if line % 5 == 2:
                assert (cell["cause"], cell["status"]) == ("content_filter", 400)
                assert cell["error"] == f"400: {HOSTILE}"
            else:
                assert cell["text"] == there[f"p{line}", cell["choice"]]
    assert page.arrays["starts"] == list(range(0, 61, 3))
    assert page.words("finish").count("length") == 24
    assert page.words("cause").count("content_filter") == sum(page.arrays["failed"]) == 12


def test_figures_are_plain_numbers_and_no_card_is_empty(out: Path, tmp_path: Path) -> None:
    text = Page(write_report(out)).text
    charts = re.findall(r"<svg.*?</svg>", text.replace(Page(write_report(out)).script, ""), re.DOTALL)
    assert len(charts) == 5  # the wide one has a narrow form for phones
    for each in charts:
        ElementTree.fromstring(each)
        assert not re.search(r"\de[+-]?\d", each)
    assert "slots 16" in text
    assert "starts 600" in text
    failed = tmp_path / "failed.jsonl"
    run(options(tmp_path / "in.jsonl", out=failed), FakeDriver(lambda *_: Failure(Cause.TIMEOUT, "no answer")))
    text = Page(write_report(failed)).text
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["Parameters"]
    assert '<b>0</b> <span>rollouts</span><small><span class="bad">60 failed</span></small>' in text


def test_an_axis_has_plain_numbers() -> None:
    for top, words in ((30_000.0, ("15k", "30k")), (1_500_000.0, ("750k", "1.5M")), (0.5, ("0.25", "0.5"))):
        drawn = chart(Series([top], ["12:00:00"], "rollouts"))
        for word in words:
            assert f">{word}</text>" in drawn
        assert "e+" not in drawn


def test_what_the_researcher_brought_are_columns(out: Path) -> None:
    with out.open("rb") as file:
        lines = [json.loads(line) for line in file]
    for record in lines:
        record["input"] = {
            "subject": "ab"[record["line"] % 2],
            "answer": f"{record['id']} " * 40,
            "level": 7,
            "tags": [1],
        }
        record["hook"] = {"score": record["line"] / 10, "right": record["line"] > 4}
        record["sweep"] = {"temperature": 0.5}
    out.write_bytes(b"".join(map(dump_line, lines)))
    page = Page(write_report(out))
    columns = {column["key"]: column for column in page.meta["columns"]}
    assert sorted(columns["input.subject"]["words"]) == ["a", "b"]
    assert not columns["input.subject"]["numeric"]
    assert columns["hook.score"]["numeric"]
    assert (columns["hook.right"]["numeric"], set(columns["hook.right"]["words"])) == (True, {"true", "false"})
    assert "input.answer" not in columns  # text, not a choice
    assert "input.tags" not in columns
    scores = page.arrays["numbers hook.score"]
    assert [each for each in scores if not math.isnan(each)][-1] == 2.0
    assert math.isnan(scores[6])  # a failure
    (group,) = [group for group in page.groups if group["id"] == "p19"]
    assert group["input"]["tags"] == [1]
    assert group["cells"][0]["sweep"] == {"temperature": 0.5}


def test_columns_with_many_words_or_large_values_are_no_choices(out: Path) -> None:
    record = records(out)[0]
    lines = [
        record | {"id": str(line), "line": line + 1, "input": {"key": f"k{line}", "huge": 10**400, "gap": line or None}}
        for line in range(MOST_WORDS + 5)
    ]
    out.write_bytes(b"".join(map(dump_line, lines)))
    columns = {column["key"]: column for column in Page(write_report(out)).meta["columns"]}
    assert "input.key" not in columns
    assert "input.huge" not in columns
    assert columns["input.gap"] == {"key": "input.gap", "words": None, "numeric": True}


def test_prompts_come_from_the_input_wherever_it_is(out: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    moved = source.rename(tmp_path / "moved.jsonl")
    page = Page(write_report(out))
    assert "--input FILE" in page.meta["note"]
    assert [group["prompt"] for group in page.groups[:3]] == [None, None, "Say 2"]  # a failure holds its request
    page = Page(write_report(out, inputs=(str(moved),)))
    assert page.meta["note"] == ""
    assert page.groups[0]["prompt"] == "Say 0"
    moved.write_text(moved.read_text().replace("Say 0", "Shout 0"))
    page = Page(write_report(out, inputs=(str(moved),)))
    assert "1 prompt is not shown" in page.meta["note"]
    assert page.groups[0]["prompt"] is None
    with pytest.raises(UsageError, match="nowhere: is no file"):
        write_report(out, inputs=("nowhere",))


def test_messages_and_lists_of_prompts(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    lines = [{"messages": messages, "mode": "chat"}, {"prompt": ["a", "b"]}, {"prompt": [[1, 2], [3]]}]
    out = tmp_path / "o.jsonl"
    run(options(write_lines(tmp_path / "in.jsonl", lines), out=out), FakeDriver())
    groups = Page(write_report(out)).groups
    assert [group["prompt"] for group in groups] == [messages, "a", "b", [1, 2], [3]]
    assert [group["prompt_index"] for group in groups] == [0, 0, 1, 0, 1]


def test_two_runs_are_joined_by_id_prompt_and_choice(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.in", [{"id": name, "prompt": name, "n": 2} for name in "abcd"])
    second = write_lines(tmp_path / "b.in", [{"id": name, "prompt": name, "n": 2} for name in "edba"])

    def answer(unit: Unit, prompt: int, choice: int) -> str | Failure:
        if unit.id == "d":
            return Failure(Cause.TIMEOUT, "no answer")
        return f"{unit.id}/{prompt}/{choice}" + (" new" if unit.id == "b" else "")

    run(options(first, out=tmp_path / "a"), FakeDriver())
    run(options(second, out=tmp_path / "b"), FakeDriver(answer))
    page = Page(write_report(tmp_path / "a", other=tmp_path / "b"))
    assert (page.meta["name"], page.meta["other"]) == ("a", "b")
    assert [group["id"] for group in page.groups] == ["a", "b", "c", "d", "e"]
    change, runs = page.words("change"), page.words("run")
    assert (
        change == ["same text"] * 4 + ["other text"] * 4 + ["only in A"] * 2 + ["failed in B"] * 4 + ["only in B"] * 2
    )
    assert runs == [*"ABAB", *"ABAB", *"AA", *"ABAB", *"BB"]
    assert [cell.get("text") for cell in page.groups[1]["cells"]] == ["b/0/0", "b/0/0 new", "b/0/1", "b/0/1 new"]


def test_the_combinations_of_a_sweep_stand_beside_each_other(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    run(options(write_lines(tmp_path / "in.txt", ["a", "b"]), out=out), FakeDriver())
    failures = out.with_name("o.jsonl.errors.jsonl")
    lines = []
    for index, temperature in enumerate((0, 0.7)):
        own = {"sweep": {"temperature": temperature}, "sweep_index": index}
        label = f"#temperature={temperature}"
        lines += [record | own | {"id": f"{record['line']}{label}"} for record in records(out)]
    bad = {name: lines[3][name] for name in ("id", "line", "sweep", "sweep_index", "of")}
    failures.write_bytes(dump_line(bad | {"cause": "timeout", "message": "no answer", "wanted": [[0, 0]]}))
    out.write_bytes(b"".join(map(dump_line, lines[:3])))
    page = Page(write_report(out))
    assert [group["id"] for group in page.groups] == ["1", "2"]
    assert [cell["sweep"]["temperature"] for group in page.groups for cell in group["cells"]] == [0, 0.7] * 2
    assert page.words("cause") == [None, None, None, "timeout"]
    assert page.words("sweep.temperature") == ["0", "0.7"] * 2
    figures = read_run(out).figures
    assert (figures.sampled_lines, figures.failed_lines, figures.asked) == (3, 1, 4)
    assert figures.sidecar is not None
    for sweep, told in (
        (Sweep([{"temperature": 0}, {"temperature": 0.7}]), "2 combinations"),
        (Sweep([{"model": model, "seed": seed} for model in "ab" for seed in range(3)]), "6 combinations"),
        (Sweep([{"seed": seed, "top_k": None} for seed in range(1)] + [{"seed": 1, "top_k": 2}] * 999), "1,000 comb"),
    ):
        figures.sidecar.parameters.update(sweep.parameters)
        assert told in tiles(figures)


def test_records_that_hold_their_prompt_need_no_input(out: Path, tmp_path: Path) -> None:
    out.write_bytes(b"".join(dump_line(record | {"prompt": f"kept {record['line']}"}) for record in records(out)))
    (tmp_path / "in.jsonl").unlink()
    page = Page(write_report(out))
    assert page.meta["note"] == ""
    assert [group["prompt"] for group in page.groups[:3]] == ["kept 1", "kept 2", "Say 2"]  # a failure's own request


def test_the_text_that_a_hook_failed_with_is_shown(out: Path) -> None:
    failures = out.with_name("out.jsonl.errors.jsonl")
    failures.write_bytes(b"".join(dump_line(record | {"text": "half a JSON"}) for record in records(failures)))
    assert Page(write_report(out)).groups[2]["cells"][0]["refused"] == "half a JSON"


def test_a_failure_that_was_made_good_is_no_failure(out: Path) -> None:
    failures = out.with_name("out.jsonl.errors.jsonl")
    lines = records(failures)
    sampled = records(out)[0] | {"line": lines[0]["line"], "id": lines[0]["id"], "of": 3}
    with out.open("ab") as file:
        for choice in (0, 2):
            file.write(dump_line(sampled | {"choice_index": choice}))
    with failures.open("ab") as file:
        file.write(dump_line(lines[0] | {"cause": "timeout"}))  # of a later try: it counts
    figures = read_run(out).figures
    assert (figures.counts.rollouts, figures.failed, figures.asked) == (50, 10, 60)
    assert figures.causes == {"content_filter": 3, "timeout": 1}


def test_the_timeline_equals_a_recount(out: Path) -> None:
    figures = read_run(out).figures
    there = records(out)
    assert figures.requests == len({record["request_id"] for record in there})
    assert figures.finish_reasons["length"] == sum(record["finish_reason"] == "length" for record in there)
    assert sum(figures.timeline.ended.values()) == 48
    assert sum(figures.timeline.busy.values()) == pytest.approx(figures.requests * 500, abs=30)


def test_an_incomplete_last_line_is_ignored(out: Path) -> None:
    with out.open("ab") as file:
        file.write(b'{"id": "p')
    assert read_run(out).figures.counts.rollouts == 48


def test_other_output_formats_have_a_page(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.txt", ["a", "b"])
    for name, form in (("o.jsonl", OutputFormat.OPENAI_BATCH), ("o.parquet", OutputFormat.ROLLOUTS)):
        run(options(source, out=tmp_path / name, form=form))
        assert [group["prompt"] for group in Page(write_report(tmp_path / name)).groups] == ["a", "b"]


def test_a_file_that_is_not_a_run_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_run(tmp_path / "nothing.jsonl")
    path = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    with pytest.raises(InputError, match=r"prompts.jsonl:1: is not a record of a run"):
        read_run(path)
    write_lines(path, ["not JSON", json.dumps({"a": 1})])
    with pytest.raises(InputError, match=r"prompts.jsonl:1: is not a record of a run"):
        read_run(path)
    path.write_text("")
    with pytest.raises(InputError, match="holds no rollouts yet"):
        read_run(path)


@pytest.mark.parametrize("name", ["out.jsonl", "in.jsonl", "out.jsonl.run.json", "out.jsonl.errors.jsonl"])
def test_a_page_replaces_no_file_but_a_page(out: Path, name: str) -> None:
    before = (victim := out.with_name(name)).read_bytes()
    with pytest.raises(UsageError, match=f"{name}: is there already, and is no HTML page; name another file"):
        write_report(out, victim)
    assert victim.read_bytes() == before


def test_a_page_is_written_over_a_page_and_an_empty_file(out: Path) -> None:
    page = out.with_name("page.html")
    page.touch()
    write_report(out, page)
    first = page.read_bytes()
    assert write_report(out, page) == page
    assert page.read_bytes() == first


def test_places_that_can_be_no_page_are_refused(out: Path) -> None:
    os.mkfifo(pipe := out.with_name("pipe"))
    nowhere = out.parent / "nowhere"
    (link := out.with_name("link.html")).symlink_to(nowhere / "page.html")
    missing = f"there is no directory {nowhere}; make it first: mkdir -p {nowhere}"
    for page, says in (
        (pipe, "is not a regular file"),
        (out.parent, "is a directory"),
        (Path(), "is a directory"),
        (nowhere / "page.html", missing),
        (link, missing),
    ):
        with pytest.raises(UsageError, match=says):
            write_report(out, page)
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_directory_is_no_output_of_a_run(out: Path, name: str) -> None:
    for output, other in ((Path(name), None), (out, Path(name))):
        with pytest.raises(UsageError, match="is a directory; name the output of a run"):
            write_report(output, None, other)
    with pytest.raises(UsageError, match="is a directory; name the output of a run"):
        ReportServer(Path(name))
