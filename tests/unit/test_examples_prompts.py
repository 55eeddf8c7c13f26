"""The demo's prompt file: varied, unique prompts, each line a request that the default provider accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from brimful.profile import get_profile
from brimful.request import Request

PROMPTS = Path(__file__).parents[2] / "examples" / "prompts.jsonl"


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PROMPTS.read_text("utf-8").splitlines()]


def test_ids_and_prompts_are_unique(lines: list[dict[str, Any]]) -> None:
    assert len(lines) >= 1000
    assert len({line["id"] for line in lines}) == len(lines)
    assert len({line["prompt"].casefold().strip() for line in lines}) == len(lines)


def test_every_line_is_a_request_that_acs_accepts(lines: list[dict[str, Any]]) -> None:
    acs = get_profile("acs")
    for line in lines:
        request = Request.parse(line, acs)
        assert request.id == line["id"]
        assert request.prompts == [line["prompt"]]


def test_prompts_are_varied(lines: list[dict[str, Any]]) -> None:
    prompts = [line["prompt"] for line in lines]
    words = [len(prompt.split()) for prompt in prompts]
    assert min(words) <= 3
    assert max(words) >= 60
    # Prompts made from a template would be equal without their numbers, and begin alike.
    assert len({re.sub(r"\d+", "#", prompt) for prompt in prompts}) == len(prompts)
    assert len({" ".join(prompt.split()[:3]).casefold() for prompt in prompts}) > 0.6 * len(prompts)
    assert len({line["id"].rpartition("-")[0] for line in lines}) >= 30


def test_some_lines_have_fields_of_their_own(lines: list[dict[str, Any]]) -> None:
    for name in ("max_tokens", "temperature", "stop", "n"):
        assert any(name in line for line in lines), name
