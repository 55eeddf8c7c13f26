"""The front door's page in a real Chromium: its figures are status's, it lives, and it fits, light and dark."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from brimful.state.keys import weights_key
from brimful.state.redis_url import sync_redis_client
from brimful.state.runs.registry import read_entries
from brimful_worker.local.server.valkey import Valkey
from support.browser import Tab, chromium, overlapping_labels, sideways, wait_for_text
from support.commands import Running, brimful_in_process
from support.doors import KEY, door_process
from support.fleets import declare_new
from support.gateways import gateway_process
from support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

PROMPT = "a canary prompt of nobody's"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def open_page(tab: Tab, url: str) -> Any:
    tab.page.goto(url.removesuffix("v1"))
    return tab.page


def ask(url: str, token: str = "any", **fields: Any) -> int:
    """The status; 0 if there is no answer."""
    body = json.dumps({"model": "llama-8b", "prompt": PROMPT, "max_tokens": 4, **fields}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", body, headers), timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def events(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``history``, and the first ``now`` with the figures of the fleet."""
    history: dict[str, Any] = {}
    with urllib.request.urlopen(f"{url.removesuffix('v1')}events", timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                data = json.loads(line.removeprefix(b"data: "))
                history = data if "points" in data else history
                if history.get("points") and data.get("fleet") and data["fleet"]["workers"]:
                    return history, data
    raise AssertionError("the events ended")


def figure(page: Any, tile: str) -> str:
    return str(page.inner_text(f"#{tile} p"))


def status(valkey: Valkey) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(brimful_in_process("status", "--json", BRIMFUL_REDIS_URL=valkey.url).stdout)
    return found


def until_ready(url: str) -> None:
    wait_until(lambda: ask(url, n=0) == 400, "the front door to be ready")


def test_its_figures_are_those_of_status_and_live(browser: Any, valkey: Valkey) -> None:
    with (
        gateway_process("--latency", "300", "--per-token", "0") as gateway,
        door_process(valkey.url, gateway.url, BRIMFUL_SLOTS="2", BRIMFUL_TIMEOUT_S="500") as (url, running),
    ):
        until_ready(url)
        tabs = [Tab(browser, width=width, dark=dark) for width in (1400, 390) for dark in (False, True)]
        pages = [open_page(tab, url) for tab in tabs]
        for page in pages:
            wait_for_text(page, "#slots p", r"^0 / 2$")
        callers = [threading.Thread(target=ask, args=(url,)) for _ in range(5)]
        for caller in callers:
            caller.start()
        for page in pages:  # without a reload
            wait_for_text(page, "#slots p", r"^2 / 2$")
            wait_for_text(page, "#queue p", r"^3$")
            wait_for_text(page, "#workers tbody", r"serve-")
        said = status(valkey)
        for tab, page in zip(tabs, pages, strict=True):
            assert figure(page, "slots") == f"{said['slots_used']} / {said['slots']}"
            assert figure(page, "starts") == f"{said['starts_used']} / {said['starts']}"
            assert figure(page, "queue") == str(sum(said["waiting"].values()))
            assert said["tag"] in page.inner_text("#tag")
            assert page.inner_text("#state") == "running"
            assert page.locator("#charts svg .line").count() == 5
            assert page.locator("#failures tbody tr").count() >= 1
            assert "invalid" in page.inner_text("#failures tbody")
            assert PROMPT not in page.content()
            assert sideways(page, "html") <= 0
            assert not overlapping_labels(page)
            assert not tab.faults
            assert {address.split("/")[2] for address in tab.asked} == {url.split("/")[2]}
        pages[0].hover("#charts svg")
        wait_for_text(pages[0], ".tip", r"^\d\d:\d\d:\d\d ")
        running.process.kill()
        wait_for_text(pages[0], "#state", "trying again")
        for tab in tabs:
            tab.close()
        for caller in callers:
            caller.join()


@pytest.mark.parametrize(
    ("limits", "silent"), [({"lease_s": 8.0}, "9 s ago"), ({}, "9 s ago"), ({"lease_s": 20.0}, None)]
)
def test_a_worker_is_silent_after_a_lease_and_not_while_it_is_idle(
    browser: Any, valkey: Valkey, limits: dict[str, float], silent: str | None
) -> None:
    with gateway_process() as gateway, door_process(valkey.url, gateway.url) as (url, _):
        until_ready(url)
        history, now = events(url)
        (worker,) = now["fleet"]["workers"]
        now["fleet"]["limits"] = limits
        now["fleet"]["workers"] = [
            {**worker, "name": name, "heard_s": age} for name, age in (("idle", 7), ("other", 9))
        ]
        stream = "".join(
            f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in (("history", history), ("now", now))
        )
        tab = Tab(browser)
        tab.page.route("**/events", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))
        page = open_page(tab, url)
        wait_for_text(page, "#workers tbody", r"idle[^$]*other")
        assert page.locator("#workers tbody .warn").all_inner_texts() == ([silent] if silent else [])
        assert not tab.faults
        tab.close()


def test_a_token_opens_it_until_it_is_revoked(browser: Any, valkey: Valkey) -> None:
    with gateway_process() as gateway, door_process(valkey.url, gateway.url) as (url, _):
        until_ready(url)
        token = brimful_in_process("serve", "token", "add", "ada", BRIMFUL_REDIS_URL=valkey.url).stdout.split()[-1]
        wait_until(lambda: ask(url, n=0) == 401, "the token to be in force")
        tab = Tab(browser)
        page = open_page(tab, url)
        page.wait_for_selector("#sign-in", state="visible")
        assert not page.is_visible("main")
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        wait_for_text(page, "#refused", "unknown")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("main", state="visible")
        assert ask(url, token) == 200
        wait_for_text(page, "#waiting tbody", "ada")
        page.reload()
        page.wait_for_selector("main", state="visible")
        assert not [address for address in tab.asked if token in address]
        assert not page.context.cookies()
        brimful_in_process("serve", "token", "revoke", "ada", BRIMFUL_REDIS_URL=valkey.url)
        page.wait_for_selector("#sign-in", state="visible")
        assert not page.is_visible("main")
        assert not [fault for fault in tab.faults if not re.search(r"401", fault)]
        tab.close()


def test_a_run_is_on_it_while_it_goes_on(browser: Any, valkey: Valkey, tmp_path: Any) -> None:
    prompts = tmp_path / "in.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{PROMPT} {number}"}}\n' for number in range(8)))
    env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_KEY": KEY}
    with gateway_process("--latency", "300") as gateway:
        env["ACS_API_BASE"] = gateway.url
        declare_new(valkey, KEY)
        with door_process(valkey.url, gateway.url) as (url, _), Running("worker", **env):
            until_ready(url)
            arguments = ("run", prompts, "-o", tmp_path / "out.jsonl", "--model", "llama-8b", "--max-tokens", "4")
            with Running(*arguments, **env):
                tab = Tab(browser)
                page = open_page(tab, url)
                page.wait_for_selector("#runs tbody tr")
                assert page.locator("#runs tbody tr").count() == 1
                wait_for_text(page, "#runs tbody", "0 / 8")
                assert PROMPT not in page.content()
                with sync_redis_client(valkey.url) as client:
                    (entry,) = wait_until(lambda: read_entries(client, live=True), "the run's entry")
                brimful_in_process("runs", "hold", entry.run, BRIMFUL_REDIS_URL=valkey.url)
                wait_for_text(page, "#runs tbody", "held")
                assert not tab.faults
                tab.close()


def test_a_batch_has_one_row_while_its_run_goes_on(browser: Any, valkey: Valkey) -> None:
    with gateway_process() as gateway, door_process(valkey.url, gateway.url) as (url, _):
        until_ready(url)
        body = {"model": "llama-8b", "prompt": PROMPT, "max_tokens": 4}
        line = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": body}
        api = OpenAI(base_url=url, api_key="any")
        file = api.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        api.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        with sync_redis_client(valkey.url) as client:
            wait_until(lambda: client.zcard(weights_key("")), "its run, which waits for a worker")
        tab = Tab(browser)
        page = open_page(tab, url)
        page.wait_for_selector("#batches tbody tr")
        wait_for_text(page, "#batches tbody", "in progress")
        assert page.locator("#batches tbody tr").count() == 1
        wait_for_text(page, "#runs", "None is under way")
        assert PROMPT not in page.content()
        assert not tab.faults
        tab.close()
        api.close()
