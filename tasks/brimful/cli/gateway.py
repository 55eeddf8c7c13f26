"""``brimful gateway``: the mock gateway, a local imitation of the provider for rehearsals and tests."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

import typer

from brimful.runtime.extras import worker_module

# As in the options of the mock gateway, which the plain install does not hold.
RetryAfter = Literal["seconds", "fraction", "ms", "date", "none"]
Disconnect = Literal["free", "finish"]
Usage = Literal["true", "missing", "zero", "one_choice"]
Reasoning = Literal["none", "reasoning", "reasoning_content"]
Text = Literal["english", "unicode"]


def gateway(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8090,
    slots: Annotated[int, typer.Option(min=0, help="Requests active at the same time; 0 = unlimited.")] = 16,
    waiters: Annotated[int, typer.Option(min=0, help="Requests that may wait for a slot.")] = 64,
    starts: Annotated[int, typer.Option(min=0, help="Starts in any window; 0 = unlimited.")] = 600,
    window_s: Annotated[float, typer.Option("--window", min=0.001, help="Length of the window in seconds.")] = 60.0,
    latency_s: Annotated[float, typer.Option("--latency", min=0.0, help="Seconds that every request takes.")] = 0.2,
    per_token_s: Annotated[
        float, typer.Option("--per-token", min=0.0, help="Further seconds per requested token of one choice.")
    ] = 0.01,
    batch_factor: Annotated[
        float, typer.Option(min=0.0, help="Share of the tokens' time that each further choice adds.")
    ] = 0.02,
    proportional: Annotated[
        bool, typer.Option("--proportional", help="Multiply the latency by the number of choices.")
    ] = False,
    jitter: Annotated[float, typer.Option(min=0.0, max=1.0, help="Random part of the latency, 0 to 1.")] = 0.0,
    tail: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="Heavy tail of the latency; at 0.5, 1 % take over 10 times as long.")
    ] = 0.0,
    faults: Annotated[
        str, typer.Option(help='Faults, such as "500:0.05,502html:0.03,reset:x2"; "list" lists them. Default: none.')
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the random faults, jitter and tail.")] = 0,
    budget: Annotated[int | None, typer.Option(min=0, help="Tokens that the key has. Default: unlimited.")] = None,
    budget_status: Annotated[int, typer.Option(min=400, max=499, help="HTTP status when the budget is used up.")] = 402,
    retry_after: Annotated[RetryAfter, typer.Option(help="Form of the Retry-After of a 429.")] = "seconds",
    models: Annotated[
        str, typer.Option(help="Known models, comma-separated; * accepts every model.")
    ] = "llama-8b,llama-70b,gpt-5.5",
    disconnect: Annotated[
        Disconnect, typer.Option(help="When a client disconnects: free its slot, or finish its request first.")
    ] = "free",
    shared_tokens_per_s: Annotated[
        float | None,
        typer.Option(
            "--shared-throughput",
            min=0.001,
            help="Tokens a second that all requests share, as on one GPU. Default: none, each has its own time.",
        ),
    ] = None,
    usage: Annotated[Usage, typer.Option(help="The usage that answers state.")] = "true",
    reasoning: Annotated[Reasoning, typer.Option(help="The field of chat messages that holds reasoning.")] = "none",
    text: Annotated[Text, typer.Option(help="The generated text; unicode has unusual characters.")] = "english",
) -> None:
    """Run the mock gateway until Ctrl-C. It prints its URL as the only line on stdout.

    It accepts every key, or only those in BRIMFUL_GATEWAY_KEYS (comma-separated).
    """
    fields = dict(locals())  # named as the fields of GatewayOptions
    del fields["host"], fields["port"]
    local = worker_module("gateway", "the mock gateway")
    if faults == "list":
        for name, kind in sorted(local.FAULTS.items()):
            typer.echo(f"{name:15}{kind.about}")
        return
    fields |= {
        "slots": slots or None,
        "starts": starts or None,
        "keys": _names(os.environ.get("BRIMFUL_GATEWAY_KEYS", "")),
        "models": () if models == "*" else _names(models),
    }
    process = worker_module("gateway.process", "the mock gateway")
    process.serve(local.Gateway(local.GatewayOptions(**fields)), host=host, port=port, ready=_describe)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _describe(gateway: Any) -> None:
    print(gateway.url, flush=True)
    print(
        f"The mock gateway listens. In another terminal:\n"
        f"  export ACS_API_BASE={gateway.url} ACS_API_KEY=any\n"
        f"  brimful run prompts.txt -o out.jsonl\n"
        f"Its request log: curl {gateway.root}/ledger\n"
        f'To change the faults: curl {gateway.root}/faults -d \'{{"faults": "500:0.05,reset:x2"}}\'\n'
        f"Ctrl-C stops it.",
        file=sys.stderr,
        flush=True,
    )
