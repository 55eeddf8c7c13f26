"""The front door beside OpenAI's client for Node, from npm."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.doors import door
from support.fleets import fleet
from support.gateways import gateway_process, running_gateway

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

BATCH = """
import OpenAI, {toFile} from "openai";
const api = new OpenAI({baseURL: process.argv[2], apiKey: "any", maxRetries: 0});
const url = "/v1/completions";
const line = (i) => JSON.stringify(
  {custom_id: `c${i}`, method: "POST", url, body: {model: "llama-8b", prompt: `p${i}`, max_tokens: 3}});
const lines = Array.from({length: 50}, (_, i) => line(i)).join("\\n");
const file = await api.files.create({file: await toFile(Buffer.from(lines), "in.jsonl"), purpose: "batch"});
let batch = await api.batches.create({input_file_id: file.id, endpoint: url, completion_window: "24h"});
while (!["completed", "failed"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  batch = await api.batches.retrieve(batch.id);
}
const output = (await (await api.files.content(batch.output_file_id)).text()).trim().split("\\n").map(JSON.parse);
const found = {status: batch.status, counts: batch.request_counts, lines: output.length, batches: 0, files: 0};
found.texts = output.filter((each) => each.response.body.choices[0].text).length;
for await (const each of api.batches.list({limit: 1})) found.batches += each.id === batch.id;
for await (const each of api.files.list({limit: 1})) found.files += 1;
found.deleted = (await api.files.delete(file.id)).deleted;
try { await api.files.retrieve(file.id); } catch (error) { found.gone = [error.constructor.name, error.code]; }
console.log(JSON.stringify(found));
"""


@pytest.mark.compat
async def test_node_s_client(monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path) -> None:
    await _install(tmp_path)
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


@pytest.mark.compat
async def test_node_s_client_has_files_and_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    await _install(tmp_path)
    (tmp_path / "batch.js").write_text(BATCH)
    with (
        gateway_process("--latency", "0.05", "--per-token", "0") as gateway,
        fleet(monkeypatch, gateway, workers=1) as its,
    ):
        async with door(monkeypatch, its.local.redis_url, gateway.url, key="sk-fleet", clean=False) as here:
            found = json.loads(await _run(tmp_path, "node", "batch.js", here.url))
    assert found == {
        "status": "completed",
        "counts": {"total": 50, "completed": 50, "failed": 0},
        "lines": 50,
        "texts": 50,
        "batches": 1,
        "files": 2,
        "deleted": True,
        "gone": ["NotFoundError", "file_not_found"],
    }


async def _install(folder: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    (folder / "package.json").write_text('{"type": "module"}')
    await _run(folder, "npm", "install", "--silent", "--no-audit", "--no-fund", f"openai@{VERSION}")


async def _run(folder: Path, *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode().strip().splitlines()[-1] if output.strip() else ""
