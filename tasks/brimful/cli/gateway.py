"""``brimful gateway``: the mock gateway, a local imitation of the provider to rehearse against."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from brimful.runtime.extras import worker_module


def gateway(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8090,
    slots: Annotated[int, typer.Option(min=0, help="Requests active at once; 0 has no limit.")] = 16,
    waiters: Annotated[int, typer.Option(min=0, help="Requests that may wait for a slot.")] = 64,
    starts: Annotated[int, typer.Option(min=0, help="Starts in any window; 0 has no limit.")] = 600,
    window: Annotated[float, typer.Option(min=0.001, help="The window, in seconds.")] = 60.0,
    latency: Annotated[float, typer.Option(min=0.0, help="Seconds of every request.")] = 0.2,
    per_token: Annotated[float, typer.Option(min=0.0, help="Seconds per token asked of a choice.")] = 0.01,
    batch_factor: Annotated[float, typer.Option(min=0.0, help="What each further choice adds to them.")] = 0.02,
    proportional: Annotated[bool, typer.Option("--proportional", help="Latency x choices.")] = False,
    jitter: Annotated[float, typer.Option(min=0.0, max=1.0, help="Random part of the latency, 0 to 1.")] = 0.0,
    faults: Annotated[str, typer.Option(help='What goes wrong: "500:0.05,502html:0.03,reset:x2"; "list" tells.')] = "",
    seed: Annotated[int, typer.Option(help="Seed of the faults' and the jitter's randomness.")] = 0,
    budget: Annotated[int | None, typer.Option(min=0, help="Tokens that the key has; unset has no end.")] = None,
    budget_status: Annotated[int, typer.Option(min=400, max=499, help="Status at the budget's end.")] = 402,
    retry_after: Annotated[
        str, typer.Option(help="Form of Retry-After: seconds, fraction, ms, date, none.")
    ] = "seconds",
    models: Annotated[str, typer.Option(help="Known models, by commas; * is any.")] = "llama-8b,llama-70b,gpt-5.5",
    disconnect: Annotated[str, typer.Option(help="A client that left: free its slot, or finish.")] = "free",
    text: Annotated[str, typer.Option(help="What it says: english, or unicode (oddities of every kind).")] = "english",
) -> None:
    """Run the mock gateway until Ctrl-C. Its URL is the one line on standard output.

    It accepts every key, or only those in BRIMFUL_GATEWAY_KEYS (by commas).
    """
    local = worker_module("gateway", "the mock gateway")
    if faults == "list":
        for name, kind in sorted(local.FAULTS.items()):
            typer.echo(f"{name:15}{kind.about}")
        return
    options = local.GatewayOptions(
        slots=slots or None,
        waiters=waiters,
        starts=starts or None,
        window_s=window,
        latency_s=latency,
        per_token_s=per_token,
        batch_factor=batch_factor,
        proportional=proportional,
        jitter=jitter,
        faults=faults,
        seed=seed,
        budget=budget,
        budget_status=budget_status,
        retry_after=retry_after,
        keys=_names(os.environ.get("BRIMFUL_GATEWAY_KEYS", "")),
        models=() if models == "*" else _names(models),
        disconnect=disconnect,
        text=text,
    )
    process = worker_module("gateway.process", "the mock gateway")
    process.serve(local.Gateway(options), host=host, port=port, ready=_tell)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _tell(gateway: Any) -> None:
    print(gateway.url, flush=True)
    print(
        f"The mock gateway listens. In another terminal:\n"
        f"  export ACS_API_BASE={gateway.url} ACS_API_KEY=any\n"
        f"  brimful run prompts.txt -o out.jsonl\n"
        f"What it saw: curl {gateway.root}/ledger\n"
        f'Faults, while it runs: curl {gateway.root}/faults -d \'{{"faults": "500:0.05,reset:x2"}}\'\n'
        f"Ctrl-C ends it.",
        file=sys.stderr,
        flush=True,
    )
