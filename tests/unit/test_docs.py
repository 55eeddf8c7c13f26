"""README and docs: who a page is for, links, and tables that are made from the code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from brimful.config import Settings
from brimful.profile import load_profiles
from support import docs, house, markdown, pairings, recording
from support.markdown import ROOT, label

PAGES = markdown.pages()
DOCS = [page for page in PAGES if page.is_relative_to(docs.DOCS) and page.parent.name != "bench"]


@pytest.mark.parametrize("page", DOCS, ids=label)
def test_a_page_opens_with_who_it_is_for(page: Path) -> None:
    title, opening = page.read_text("utf-8").split("\n\n")[:2]
    assert re.fullmatch("# .+", title)
    assert opening.startswith("For "), opening


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_link_resolves(page: Path) -> None:
    """Those into the web by their form only."""
    for link in markdown.links(page):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]+", parts.netloc), link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if parts.fragment and target.suffix == ".md":
            made = docs.commands() if target.name == "commands.md" else ""
            assert parts.fragment in markdown.anchors(target) or f"## {parts.fragment}" in made, link


@pytest.mark.parametrize("page", docs.pages(), ids=label)
def test_the_made_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == house.renewed(text, docs.PARTS), "run: PYTHONPATH=tests python -m support.docs"


def test_the_tables_are_all_shown() -> None:
    shown = "".join(page.read_text("utf-8") for page in docs.pages())
    assert not [name for name in docs.PARTS if f"<!-- {name} -->" not in shown]
    settings = (docs.DOCS / "settings.md").read_text("utf-8")
    assert not [name for name in Settings.model_fields if f"`BRIMFUL_{name.upper()}`" not in settings]


def test_the_site_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    missing = [page for page in DOCS if f": {page.relative_to(docs.DOCS)}\n" not in navigation]
    assert not missing


def test_every_provider_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, profile in load_profiles(None).items():
        assert f"| `{name}`" in readme, name
        assert profile.key_env[0] in readme or profile.key_default, name


def test_the_readme_is_a_screen_and_a_half() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 130
    for words in ("make demo", "make test", "brimful run", "--rehearse", "brimful serve"):
        assert words in text


def test_the_readme_s_table_of_programs_is_the_measured_one() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, found in json.loads((docs.DOCS / "bench" / "tools.json").read_text("utf-8")).items():
        row = next(line for line in readme.splitlines() if name in line.replace("*", "") and line.count("|") == 5)
        assert row.endswith(f"| {found['seconds']} s | {found['refused']} | {found['most_arrivals']} |")


def test_the_rights_in_the_docs_are_those_that_tests_use() -> None:
    assert pairings.RIGHTS in (docs.DOCS / "redis.md").read_text("utf-8")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Rich and textwrap may differ between Pythons")
def test_the_recording_is_the_program_s() -> None:
    assert recording.PICTURE.read_text("utf-8") == recording.drawing(), (
        "run: PYTHONPATH=tests python -m support.recording"
    )
