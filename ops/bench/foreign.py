"""`brimful run` against an OpenAI-compatible server of somebody else: fakellm, in its own virtual environment.

``python ops/bench/foreign.py`` takes about 20 seconds once fakellm is installed. Exits 1 if a check fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brimful_worker.local.server.valkey import free_port

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("foreign-requirements.txt")
GOOD, BAD, BUSY = 200, 3, 2
RULES = """version: 1
defaults: {fallback: deterministic_echo}
rules:
  - {name: bad, when: {messages_contain: malformed}, respond: {status: 400, error: no such thing}}
  - {name: busy, when: {messages_contain: overloaded}, respond: {status: 503, error: try again}}
"""


def environment() -> Path:
    """The environment's folder of commands; the environment is made once."""
    folder = ROOT / ".bench" / "foreign"
    if not (folder / "bin" / "fakellm").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    return folder / "bin"


@contextmanager
def fakellm(folder: Path) -> Iterator[str]:
    """Run fakellm; yields its root URL."""
    config, port = folder / "fakellm.yaml", free_port()
    config.write_text(RULES)
    command = [str(environment() / "fakellm"), "serve", "--port", str(port), "--config", str(config)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        root, end = f"http://127.0.0.1:{port}", time.monotonic() + 30
        while True:
            try:
                ask(root)
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("fakellm does not answer") from None
                time.sleep(0.1)
        yield root
    finally:
        process.terminate()
        process.wait()


def ask(root: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{root}/_fakellm/stats", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``. Raises AssertionError."""
    with tempfile.TemporaryDirectory(prefix="brimful-foreign-") as name:
        folder = Path(name)
        lines = [f"Tell me of number {place}." for place in range(GOOD)]
        lines += [f"malformed {place}" for place in range(BAD)] + [f"overloaded {place}" for place in range(BUSY)]
        (folder / "prompts.txt").write_text("\n".join(lines) + "\n")
        with fakellm(folder) as root:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("BRIMFUL_", "OPENAI_"))}
            env = {**kept, "OPENAI_API_KEY": "sk-any", "XDG_STATE_HOME": str(folder)}
            env |= {"BRIMFUL_ATTEMPTS": "3", "BRIMFUL_BACKOFF_BASE_S": "0.1", "OPENAI_BASE_URL": f"{root}/v1/"}
            command = [sys.executable, "-m", "brimful.cli", "run", "prompts.txt", "-o", "out.jsonl"]
            command += ["--provider", "openai"]
            command += ["--model", "gpt-any", "--max-tokens", "16", "--workers", "2", "--json", "--no-progress"]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
            seen = ask(root)["by_rule"]
        assert done.returncode == 3, done.stderr
        records = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        failed = [json.loads(line) for line in (folder / "out.jsonl.errors.jsonl").read_text().splitlines()]
    assert sorted(record["line"] for record in records) == list(range(1, GOOD + 1))
    assert all(record["text"] for record in records)
    assert Counter(record["cause"] for record in failed) == {"bad_request": BAD, "server_error": BUSY}
    assert seen == {"<fallthrough>": GOOD, "bad": BAD, "busy": 3 * BUSY}, seen
    summary = json.loads(done.stdout)
    text = (
        f"# A server that is not ours\n\n`brimful run` against fakellm, {len(lines)} chat requests: {GOOD} sampled "
        f"once each, {BAD} refused (400) and asked once, {BUSY} always busy (503) and asked three times; exit 3, "
        f"{summary['seconds']} s.\n"
    )
    return {"markdown": text, "figures": {"seen": seen, "seconds": summary["seconds"]}}


if __name__ == "__main__":
    print(main()["markdown"])
