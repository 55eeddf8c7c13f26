"""Debian's Chromium, headless, for pages that are looked at. Tests that use it are marked compat."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """A playwright Browser. Skips the test where no Chromium is installed."""
    program = shutil.which("chromium") or pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page that is open, with what went wrong on it: errors, refused loads, addresses asked for."""

    def __init__(self, browser: Any, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            has_touch=width < 600, device_scale_factor=1,
        )  # fmt: skip
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _dismiss(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, place: Path | str) -> Any:
        """Returns playwright's Page once its first rows are there."""
        self.page.goto(place.as_uri() if isinstance(place, Path) else place, wait_until="commit")
        self.page.wait_for_selector("html[data-ready]")
        self.page.wait_for_selector(".row .facts")
        return self.page

    def close(self) -> None:
        self.context.close()


def overlapping_labels(page: Any) -> list[str]:
    """Labels of charts on screen that lie over each other or outside their chart."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll(".card svg")].filter((each) => each.clientWidth).flatMap((chart) => {
          const frame = chart.getBoundingClientRect();
          const labels = [...chart.querySelectorAll("text")].map((each) =>
            [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.width);
          const faults = labels.filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1).map(([text]) => `${text} sticks out`);
          labels.forEach(([text, box], place) => labels.slice(place + 1).forEach(([other, its]) => {
            const across = box.left < its.right && its.left < box.right;
            if (across && box.top + 2 < its.bottom && its.top + 2 < box.bottom)
              faults.push(`${text} over ${other}`);
          }));
          return faults;
        })"""
    )
    return found


def sideways(page: Any, selector: str) -> int:
    """Pixels by which an element's content is wider than the element."""
    return int(page.eval_on_selector(selector, "(element) => element.scrollWidth - element.clientWidth"))


def wait_for_text(page: Any, selector: str, pattern: str) -> None:
    """Wait until an element that matches ``selector`` has such a text. The page's policy forbids wait_for_function."""
    page.locator(selector).filter(has_text=re.compile(pattern)).wait_for()
