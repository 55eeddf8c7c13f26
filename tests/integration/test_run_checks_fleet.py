"""Checked runs as a user types them: real workers, a real Valkey, and a gateway on its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from support.commands import Running, brimful, nothing_left, records, write_prompts
from support.strict_gateway import StrictGatewayProcess
from support.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "checks"


def test_the_example_samples_until_the_json_fits_and_scores_it(tmp_path: Path) -> None:
    out = tmp_path / "people.jsonl"
    schema = json.loads((EXAMPLE / "person.schema.json").read_text())
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    arguments: list[str | Path] = ["run", EXAMPLE / "people.jsonl", "-o", out, "--rehearse", "--workers", "1", "--chat"]
    arguments += ["--n", "4", "--seed", "1", "--max-tokens", "64", "--param", f"response_format={json.dumps(form)}"]
    arguments += ["--schema", EXAMPLE / "person.schema.json", "--hook", f"{EXAMPLE / 'scorer.py'}:score"]
    done = brimful(*arguments, "--tries", "12", "--keep-rejected", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    found = records(out)
    assert len(found) == summary["checks"]["accepted"] == 12
    assert sorted((record["id"], record["choice_index"]) for record in found) == sorted(
        (id, choice) for id in ("child", "anybody", "elder") for choice in range(4)
    )
    for record in found:
        person, oldest = json.loads(record["text"]), record["input"]["oldest"]
        assert person["age"] <= oldest
        assert record["hook"] == {"name": person["name"], "score": round(person["age"] / oldest, 3)}
    rejected = records(tmp_path / "people.jsonl.rejected.jsonl")
    assert len(rejected) == summary["checks"]["rejected"] == summary["checks"]["rejected_by"]["hook"] > 0
    by_place: dict[tuple[str, int], list[str]] = {}
    for record in (*rejected, *found):
        by_place.setdefault((record["id"], record["choice_index"]), []).append(record["text"])
    assert all(len(set(texts)) == len(texts) for texts in by_place.values())  # no text was drawn twice


@pytest.mark.parametrize("pack", ["off", pytest.param("auto", marks=pytest.mark.compat)])
def test_a_submitter_killed_between_sampling_and_acceptance_loses_nothing_and_pays_nothing_twice(
    tmp_path: Path, pack: str
) -> None:
    (tmp_path / "gate.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from brimful.hooks import Again\n"
        "HERE = Path(__file__).parent\n"
        "def check(line, completion):\n"
        "    with (HERE / 'calls').open('a') as file:\n"
        "        file.write(f'{line.number}\\n')\n"
        "    while line.number > 10 and not (HERE / 'go').exists():\n"
        "        time.sleep(0.02)\n"
        "    if line.number % 2 and completion.tries == 1:\n"
        "        raise Again('odd')\n"
        "    return {'text': completion.text}\n"
    )
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 40), tmp_path / "out.jsonl"
    arguments: list[str | Path] = ["run", prompts, "-o", out, "--pack", pack, "--max-tokens", "8", "--workers", "1"]
    arguments += ["--hook", f"{tmp_path / 'gate.py'}:check", "--hook-workers", "40", "--json"]
    calls = tmp_path / "calls"
    with StrictGatewayProcess(latency=0.1) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-checks"}
        with Running(*arguments, **env) as run:
            # Lines 1 to 10 are judged, and five of them asked again and judged again; all others wait at the gate.
            wait_until(lambda: gateway.ledger()["sampled"] >= 45, "all to be sampled", timeout=90)
            wait_until(lambda: calls.exists() and len(calls.read_text().split()) >= 45, "calls of the hook", timeout=90)
            run.look()
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()
            nothing_left(run.family)
        before = gateway.ledger()["sampled"]
        (tmp_path / "go").touch()
        done = brimful(*arguments, **env)
        sampled = gateway.ledger()["sampled"]
    assert done.returncode == 0, done.stderr
    assert (before, sampled) == (45, 60)
    found = records(out)
    assert sorted(record["line"] for record in found) == list(range(1, 41))
    assert all(record.get("tries", 1) == 1 + record["line"] % 2 for record in found)
    assert all(record["hook"]["text"] == record["text"] for record in found)
    rejected = records(tmp_path / "out.jsonl.rejected.jsonl")
    assert sorted(record["line"] for record in rejected) == list(range(1, 41, 2))
    summary = json.loads(done.stdout)
    checks = summary["checks"]
    assert (checks["accepted"], checks["rejected"], summary["rollouts"], summary["left"]) == (40, 20, 40, 0)


def test_ctrl_c_while_hooks_run_keeps_what_was_sampled_for_the_next_try(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio\n"
        "from pathlib import Path\n"
        "HERE = Path(__file__).parent\n"
        "async def check(line, completion):\n"
        "    (HERE / 'called').touch()\n"
        "    while not (HERE / 'go').exists():\n"
        "        await asyncio.sleep(0.02)\n"
    )
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 24), tmp_path / "out.jsonl"
    arguments: list[str | Path] = ["run", prompts, "-o", out, "--pack", "off", "--max-tokens", "8", "--workers", "1"]
    arguments += ["--hook", f"{tmp_path / 'slow.py'}:check", "--hook-workers", "2", "--json"]
    with StrictGatewayProcess(latency=0.1) as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-checks"}
        with Running(*arguments, **env) as run:
            wait_until(lambda: gateway.ledger()["sampled"] == 24, "all to be sampled", timeout=90)
            wait_until((tmp_path / "called").exists, "a call of the hook", timeout=60)
            assert run.interrupt() == 130
            nothing_left(run.family)
        (tmp_path / "go").touch()
        done = brimful(*arguments, **env)
        sampled = gateway.ledger()["sampled"]
    assert done.returncode == 0, done.stderr
    assert sampled == 24
    assert sorted(record["line"] for record in records(out)) == list(range(1, 25))
