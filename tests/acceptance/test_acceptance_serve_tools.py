"""The examples of docs/serve.md, each with the real tool: unchanged but for the base URL, and within the limits."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.commands import environment
from support.documents import Example, examples, sections
from support.doors import door_process, until_ready
from support.environments import environment_with
from support.fleets import fleet
from support.gateways import GatewayProcess, gateway_process

PAGE, SHOWN = "serve.md", "http://127.0.0.1:8000/v1"
"""The base URL as the page shows it. The tests use that of a front door on a free port."""
KEY = "sk-fleet"
MANY = 64
INSPECT_TASK = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import generate


@task
def mine():
    return Task(dataset=[Sample(input=f"What is {{number}} squared?") for number in range({MANY})], solver=generate())
"""
LM_EVAL_TASK = """
task: mine
dataset_path: json
dataset_kwargs: {data_files: questions.jsonl}
test_split: train
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
output_type: generate_until
generation_kwargs: {until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
LM_EVAL_DATA = "".join(
    json.dumps({"question": f"What is {number} squared?", "answer": str(number**2)}) + "\n" for number in range(MANY)
)
TOKENIZERS = "lib/python*/site-packages/litellm/litellm_core_utils/tokenizers"


@dataclass(frozen=True)
class Tool:
    """``said``: a pattern that the output of each of its examples has. ``rollouts``: how many one asks for at least."""

    said: str
    rollouts: int
    packages: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()


TOOLS = {
    "Python": Tool(said=r"\w", rollouts=1),
    "Node": Tool(said=r"\w", rollouts=1),
    "curl": Tool(said=r"data: \[DONE\]", rollouts=1),
    "inspect_ai": Tool(
        said=rf"Samples: +{MANY}/ *{MANY}",
        rollouts=MANY,
        packages=("inspect-ai==0.3.285", "openai"),
        files=(("task.py", INSPECT_TASK),),
        env=(("INSPECT_DISPLAY", "plain"),),
    ),
    "lm-eval": Tool(
        said=r"\|mine *\|",
        rollouts=MANY,
        packages=("lm-eval[api]==0.4.13",),
        files=(("mine.yaml", LM_EVAL_TASK), ("questions.jsonl", LM_EVAL_DATA)),
        env=(("HF_HUB_OFFLINE", "1"),),
    ),
    "curator": Tool(
        said=rf"^{MANY} rows$",
        rollouts=MANY,
        packages=("bespokelabs-curator==0.1.31",),
        env=(("TELEMETRY_ENABLED", "0"), ("LITELLM_LOCAL_MODEL_COST_MAP", "True"), ("HF_HUB_OFFLINE", "1")),
    ),
    "LangChain": Tool(said=rf"^{MANY} answers$", rollouts=MANY + 1, packages=("langchain-openai==1.7.4",)),
}
SECTIONS = sections(PAGE, 3)


@dataclass(frozen=True)
class Place:
    """A front door in its own process, beside a worker."""

    url: str
    gateway: GatewayProcess


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        pytest.MonkeyPatch.context() as patch,
        gateway_process("--latency", "0.2", "--per-token", "0") as gateway,
    ):
        patch.setenv("XDG_STATE_HOME", str(folder))
        with (
            fleet(patch, gateway, workers=1, key=KEY) as its,
            door_process(
                its.local.redis_url, gateway.url, ACS_API_KEY=KEY, BRIMFUL_SERVE_DATA=str(folder / "data")
            ) as (url, _),
        ):
            until_ready(url)
            yield Place(url, gateway)


def test_each_example_of_the_page_is_run() -> None:
    named = re.findall(r"^### (.+)$", sections(PAGE, 2)["The two lines"], re.MULTILINE)
    assert [name for name in named if examples(SECTIONS[name])] == list(TOOLS)
    assert not [name for name in TOOLS for each in examples(SECTIONS[name]) if SHOWN not in each.text]


@pytest.mark.compat
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TOOLS)
def test_the_example_runs_within_the_limits(name: str, place: Place, tmp_path: Path) -> None:
    tool = TOOLS[name]
    commands = environment_with(tmp_path / "venv", *tool.packages) if tool.packages else Path(sys.executable).parent
    home = tmp_path / "home"
    home.mkdir()
    for file, text in tool.files:
        (home / file).write_text(text)
    for number, example in enumerate(examples(SECTIONS[name])):
        place.gateway.reset()
        said = run(example, number, place, commands, home, dict(tool.env))
        assert re.search(tool.said, said, re.MULTILINE), said
        ledger = place.gateway.ledger()
        found = {kind: ledger[kind] for kind in ("peak_active", "rate_limited", "arrivals")}
        print(f"{name}, example {number + 1}: {found}, rollouts {ledger['rollouts']['total']}")
        assert ledger["peak_active"] <= 16
        assert set(ledger["statuses"]) == {"200"}
        assert ledger["rollouts"]["distinct"] >= tool.rollouts
        assert ledger["rollouts"]["repeated"] == 0


def run(example: Example, number: int, place: Place, commands: Path, home: Path, more: dict[str, str]) -> str:
    """Its output. Fails unless it exits with 0."""
    text = example.text.replace(SHOWN, place.url)
    if example.language == "js":
        text = in_node(home, text)
    file = home / f"example{number}.{example.language}"
    file.write_text(text)
    program = {"python": [str(commands / "python")], "js": ["node"], "sh": ["bash", "-e"]}[example.language]
    env = environment(**{"HOME": str(home), **tokenizers(commands), **more})
    env["PATH"] = f"{commands}{os.pathsep}{env['PATH']}"
    done = subprocess.run([*program, str(file)], cwd=home, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tokenizers(commands: Path) -> dict[str, str]:
    """curator wants tables that tiktoken downloads. litellm, which it needs, brings them."""
    found = list(commands.parent.glob(TOKENIZERS))
    return {"TIKTOKEN_CACHE_DIR": str(found[0])} if found else {}


def in_node(home: Path, text: str) -> str:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    (home / "package.json").write_text('{"type": "module"}')
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai@6.49.0"]
    done = subprocess.run(install, cwd=home, capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"npm cannot install openai: {(done.stderr or done.stdout).strip()[-300:]}")
    return text
