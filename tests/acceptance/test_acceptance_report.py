"""The report in a real Chromium: read, searched, filtered, compared and served, at both sizes, light and dark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.run.output.records import dump_line
from brimful.run.report.page import write_report
from brimful.run.report.serve import ReportServer
from support.browser import Tab, chromium, overlapping_labels, sideways, wait_for_text
from support.made_runs import make_run
from support.runs import records

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 prompts with 4 rollouts each."""
    return make_run(tmp_path_factory.mktemp("run") / "out.jsonl", 300, 4)


def _count(page: Any) -> str:
    return page.inner_text("#count")


def _search(page: Any, text: str) -> None:
    page.evaluate("delete document.documentElement.dataset.searchMs")
    page.fill("#search", text)
    page.wait_for_selector("html[data-search-ms]")


def test_a_run_is_searched_filtered_sorted_and_read(browser: Any, run: Path) -> None:
    tab = Tab(browser)
    page = tab.open(write_report(run))
    assert _count(page).startswith("300 prompts · 1,1")
    _search(page, "in ALGEBRA? Work")
    found = int(_count(page).split()[0])
    assert 40 < found < 120
    assert page.inner_text(".row .words mark").lower() == "in algebra? work"
    page.get_by_label("qwen-32b").check()
    assert int(_count(page).split()[0]) < found
    page.get_by_text("Clear all filters").click()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    wait_for_text(page, "#count", "^300 prompts")
    page.get_by_label("failed").check()
    failed = int(_count(page).split()[0])
    assert page.locator(".row .cell.failed").first.inner_text().count("refused") == 1
    assert f"{4 * failed} failed" in _count(page)
    page.get_by_label("failed").uncheck()
    page.select_option("#sort", "hook.score:down")
    assert page.locator(".row .score").first.is_visible()
    page.fill("input[aria-label='score: at least']", "0.95")
    page.keyboard.press("Tab")
    assert page.locator(".row").first.locator(".cell:not(.aside)").count() >= 1
    page.focus("#list")
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#reader[open]")
    second = page.inner_text("#reader h2")
    page.keyboard.press("j")
    wait_for_text(page, "#reader h2", rf"^(?!{second}$)")
    page.keyboard.press("Escape")
    page.wait_for_selector("#reader", state="hidden")
    page.keyboard.press("End")
    page.wait_for_selector(".row.active")
    page.keyboard.press("2")
    assert page.locator("#compare tbody tr").count() == 2
    assert "mean score" in page.inner_text("#compare")
    assert tab.faults == []
    assert [url for url in tab.asked if not url.startswith("file:")] == []
    tab.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_collides_or_sticks_out(browser: Any, run: Path, width: int, dark: bool) -> None:
    tab = Tab(browser, width=width, height=844, dark=dark)
    page = tab.open(write_report(run))
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(19, 22, 25)") == dark
    for name in ("rollouts", "compare", "figures"):
        page.click(f"#tab-{name}")
        assert sideways(page, "html") <= 0
    assert page.locator(".card svg:visible").count() == 4
    assert overlapping_labels(page) == []
    page.click("#tab-rollouts")
    page.locator(".row").nth(1).click(position={"x": 30, "y": 20})
    page.wait_for_selector("#reader[open] .cell")
    assert (
        page.evaluate("document.querySelector('.page').scrollWidth - document.querySelector('.page').clientWidth") <= 0
    )
    assert tab.faults == []
    tab.close()


ODD = {
    "html": "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>bold</b>",
    "control": "NUL \0 and \x1b[31m escape \ud800 lone, \u202e turned \u2028 line",
    "arabic": "مرحبا بالعالم " * 40,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 400,
    "wide": "W" * 5000,
    "empty": "",
    "huge": "abc def " * 1_300_000,
}


def test_odd_texts_are_shown_as_they_are_and_run_nothing(browser: Any, tmp_path: Path) -> None:
    out = make_run(tmp_path / "odd.jsonl", 1, 1)
    record = {**records(out)[0], "prompt": ODD["html"], "input": {"<b>column</b>": ODD["html"]}}
    lines = [record | {"id": name, "line": line, "text": text} for line, (name, text) in enumerate(ODD.items(), 1)]
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Paris"}'}}
    message = {"role": "assistant", "tool_calls": [call], "reasoning_content": "Let me think."}
    lines.append(record | {"id": "tools", "line": 8, "text": "", "message": message})
    lines += [record | {"id": "many", "line": 9, "of": 64, "choice_index": choice} for choice in range(64)]
    out.write_bytes(b"".join(map(dump_line, lines)))
    tab = Tab(browser)
    page = tab.open(write_report(out))
    assert ODD["html"] in page.locator(".row").first.inner_text()
    assert "NUL ␀ and ␛[31m escape" in page.locator(".row").nth(1).inner_text()
    shown = {}
    page.focus("#list")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    for name in [*ODD, "tools", "many"]:
        wait_for_text(page, "#reader h2", rf"^{name}$")
        shown[name] = page.inner_text("#reader .cells")
        assert (
            page.evaluate("document.querySelector('.page').scrollWidth - document.querySelector('.page').clientWidth")
            <= 0
        )
        if name == "huge":
            assert len(shown[name]) < 200_000
            page.get_by_text("show 100,000 more").click()
            assert len(page.inner_text("#reader .cells")) > 200_000
        page.keyboard.press("j")
    assert ODD["html"] in shown["html"]
    assert ODD["wide"] in shown["wide"]
    assert "no text" in shown["empty"]
    assert "Let me think." in shown["tools"]
    assert 'look_up({"city": "Paris"})' in shown["tools"]
    assert page.locator("#reader .cell").count() == 64
    assert tab.faults == []
    tab.close()


def test_runs_of_one_rollout_or_of_failures_only(browser: Any, tmp_path: Path) -> None:
    one = make_run(tmp_path / "one.jsonl", 1, 1)
    tab = Tab(browser)
    assert _count(tab.open(write_report(one))) == "1 prompt · 1 rollout"
    failed = tmp_path / "failed.jsonl"
    record = {"id": "a", "line": 1, "cause": "timeout", "message": "no answer", "wanted": [[0, 0], [0, 1]], "of": 2}
    failed.with_name("failed.jsonl.errors.jsonl").write_bytes(dump_line(record))
    page = tab.open(write_report(failed))
    assert _count(page) == "1 prompt · 0 rollouts · 2 failed"
    page.click("#tab-figures")
    assert page.locator(".card").count() == 1
    assert tab.faults == []
    tab.close()


def test_two_runs_are_compared_word_by_word(browser: Any, tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a.jsonl", 30, 2), tmp_path / "b.jsonl"
    second.write_bytes(first.read_bytes().replace(b" therefore ", b" hence "))
    tab = Tab(browser)
    page = tab.open(write_report(first, other=second))
    assert page.locator(".row .run-a").count() > 0
    assert page.locator(".row del").first.inner_text() == "therefore"
    assert page.locator(".row ins").first.inner_text() == "hence"
    page.get_by_label("other text").check()
    assert page.locator(".row .cell:not(.aside)").count() > 0
    page.click("#tab-compare")
    assert [row.split()[0] for row in page.locator("#compare tbody tr").all_inner_texts()] == ["A", "B"]
    assert tab.faults == []
    tab.close()


def test_a_served_run_is_read_and_searched(browser: Any, run: Path) -> None:
    with ReportServer(run) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            tab = Tab(browser)
            page = tab.open(server.url)
            _search(page, "in history? Work")
            assert 40 < int(_count(page).split()[0]) < 120
            page.wait_for_selector(".row mark")
            assert tab.faults == []
            tab.close()
        finally:
            server.stop()
            thread.join()


def test_twenty_thousand_rollouts_are_searched_and_a_hundred_thousand_open(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser)
    page = tab.open(write_report(make_run(tmp_path / "20k.jsonl", 5_000, 4)))
    page.wait_for_selector("html[data-loaded]")
    times = []
    for text in ("temperature pressure", "e", "not to be found", "physics-123", "proof let integer"):
        _search(page, text)
        times.append(f"{text!r} {page.get_attribute('html', 'data-search-ms')} ms ({_count(page)})")
    print("search of 20,000 rollouts:", "; ".join(times))
    page = tab.open(write_report(make_run(tmp_path / "100k.jsonl", 25_000, 4, words=100)))
    ready = page.get_attribute("html", "data-ready")
    page.wait_for_selector("html[data-loaded]")
    loaded = page.get_attribute("html", "data-loaded")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime.toFixed(0)")
    print(f"100,000 rollouts: first paint after {paint} ms, rows after {ready} ms, all texts after {loaded} ms")
    page.focus("#list")
    page.keyboard.press("End")
    page.wait_for_selector(".row.active .facts")
    assert page.locator(".row.active .id").inner_text().endswith("-25000")
    assert page.locator(".row").count() < 40
    assert tab.faults == []
    tab.close()
