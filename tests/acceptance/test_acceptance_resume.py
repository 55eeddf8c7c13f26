"""A run killed and typed again, packed and not: every record once, every text exactly as it was said."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from brimful_worker.gateway.model.text import prompt_digest, sample_text
from support.commands import Running, nothing_left, records
from support.gateways import gateway_process
from support.waiting import wait_until

N, MAX_TOKENS = 4, 24
ODD = [
    'say "this"',
    "back\\slash",
    "a\u2028b\u2029c\x85d\x0be\x0cf",
    "\ud800 alone",
    "\U0001f469\u200d\U0001f680",
    "é\r\nè",
]


def _prompts() -> list[str]:
    return ["the same"] * 8 + ODD + [f"{ODD[place % len(ODD)]} {place}" for place in range(186)]


def _kill(run: Running) -> None:
    run.look()
    run.process.send_signal(signal.SIGKILL)  # none is sent if it has ended
    run.process.wait()
    nothing_left(run.family)


@pytest.mark.parametrize(("pack", "kills"), [("auto", 2), ("off", 1)])
def test_odd_texts_equal_lines_and_torn_ends_survive_kills(tmp_path: Path, pack: str, kills: int) -> None:
    dice, prompts = random.Random(pack), _prompts()
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    arguments = ["run", source, "-o", out, "--n", str(N), "--max-tokens", str(MAX_TOKENS), "--workers", "1"]
    latency = ("--latency", "0.3", "--per-token", "0.005", "--starts", "0")
    with gateway_process("--text", "unicode", *latency) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-resume", "BRIMFUL_STARTS": "0"}

        def size() -> int:
            return out.stat().st_size if out.exists() else 0

        for _ in range(kills):
            with Running(*arguments, "--pack", pack, **env) as run:
                goal = size() + dice.randrange(1, 40_000)
                wait_until(lambda goal=goal, run=run: size() >= goal or run.process.poll() is not None, "progress", 90)
                _kill(run)
            data = out.read_bytes()
            if data:  # as a power cut leaves it
                out.write_bytes(data[: -dice.randrange(1, 80)])
        with Running(*arguments, "--pack", pack, **env) as run:
            output, _ = run.process.communicate(timeout=90)
            assert run.process.returncode == 0, output
        ledger = gateway.ledger()
    found = records(out)
    identities = sorted((record["line"], record["prompt_index"], record["choice_index"]) for record in found)
    assert identities == [(line, 0, choice) for line in range(1, len(prompts) + 1) for choice in range(N)]
    for record in found:
        digest = prompt_digest(prompts[record["line"] - 1])
        said = {
            sample_text(digest, choice, max_tokens=MAX_TOKENS, model="llama-8b", odd=True)[0] for choice in range(N)
        }
        assert record["text"] in said
    assert ledger["peak_active"] <= 16
