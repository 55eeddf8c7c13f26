"""The front door beside OpenAI's client for Node, from npm."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.doors import door
from support.gateways import running_gateway

VERSION = "6.49.0"
SCRIPT = """
import OpenAI from "openai";
const api = new OpenAI({baseURL: process.argv[2], apiKey: "any", maxRetries: 3});
const found = {};
const completion = await api.completions.create({model: "llama-8b", prompt: ["a", "b"], max_tokens: 3, n: 2});
found.indexes = completion.choices.map((choice) => choice.index);
const messages = [{role: "user", content: "Hi"}];
const chat = await api.chat.completions.create({model: "llama-8b", messages, max_tokens: 3});
found.chat = typeof chat.choices[0].message.content;
const stream = await api.chat.completions.create(
  {model: "llama-8b", messages, max_tokens: 3, n: 2, stream: true, stream_options: {include_usage: true}});
found.ends = {};
for await (const chunk of stream) {
  for (const choice of chunk.choices) if (choice.finish_reason) found.ends[choice.index] = choice.finish_reason;
  if (chunk.usage) found.tokens = chunk.usage.completion_tokens;
}
found.models = [];
for await (const model of api.models.list()) found.models.push(model.id);
const many = await Promise.all(Array.from({length: 60}, (_, i) =>
  api.completions.create({model: "llama-8b", prompt: `p${i}`, max_tokens: 2}, {maxRetries: 0})));
found.many = many.filter((each) => each.choices[0].text).length;
const cut = await api.completions.create({model: "llama-8b", prompt: "cut", max_tokens: 2, stream: true});
try { for await (const chunk of cut); found.cut = "whole"; } catch (error) { found.cut = error.constructor.name; }
try { await api.completions.create({model: "none", prompt: "no such model", max_tokens: 2}); }
catch (error) { found.error = [error.constructor.name, error.status, error.code]; }
console.log(JSON.stringify(found));
"""


@pytest.mark.compat
async def test_node_s_client(monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    await _run(tmp_path, "npm", "install", "--silent", "--no-audit", "--no-fund", f"openai@{VERSION}")
    (tmp_path / "ask.js").write_text(SCRIPT)
    async with (
        running_gateway(latency_s=0.05, faults="errorevent:@cut") as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        found = json.loads(await _run(tmp_path, "node", "ask.js", here.url))
        assert found == {
            "indexes": [0, 1, 2, 3],
            "chat": "string",
            "ends": {"0": "length", "1": "length"},
            "tokens": 6,
            "models": ["llama-8b", "llama-70b", "gpt-5.5"],
            "many": 60,
            "cut": "APIError",
            "error": ["NotFoundError", 404, "model_not_found"],
        }
        assert gateway.slots.peak_active <= 16
        assert gateway.request_log.statuses[404] == 1


async def _run(folder: Path, *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode().strip().splitlines()[-1] if output.strip() else ""
