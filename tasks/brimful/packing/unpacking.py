"""Divides the outcome of a request among the lines whose prompts it carried. Pure."""

from __future__ import annotations

from brimful.outcome import Outcome, Rollout, rollouts
from brimful.packing.packing import PackedRequest
from brimful.packing.units import Delivered, Failed, Manifest, Unit
from brimful.packing.usage import share_usage


def unpack(manifest: Manifest, outcome: Outcome, asked_model: str = "") -> list[Delivered]:
    """The lines' parts of a successful outcome, in the order in which the request carried them.

    ``asked_model``: the request's, if it is known.

    Raises ValueError where the answer does not fit the manifest.
    """
    completion = outcome.completion
    if completion is None or not manifest:
        raise ValueError("no completion to unpack")
    n = len(manifest[0].choices)
    lines: dict[int, tuple[str, list[Rollout]]] = {}
    seen = 0
    for rollout in rollouts(completion, n):
        try:
            entry = manifest[rollout.prompt_index]
        except IndexError:
            raise ValueError(f"choice for prompt {rollout.prompt_index} of {len(manifest)}") from None
        prompt, choice = entry.prompt_index, entry.choices[rollout.choice_index]
        if prompt != rollout.prompt_index or choice != rollout.choice_index:
            rollout = Rollout(prompt, choice, rollout.text, rollout.finish_reason, rollout.choice)
        if (found := lines.get(entry.line)) is None:
            lines[entry.line] = entry.id, [rollout]
        else:
            found[1].append(rollout)
        seen += 1
    if seen != n * len(manifest):
        raise ValueError(f"{seen} choices for {n * len(manifest)}")
    usage = completion.get("usage")
    usage = dict(usage) if isinstance(usage, dict) else None
    shares = [usage] if len(lines) == 1 else share_usage(usage, [len(mine) for _, mine in lines.values()])
    return [
        Delivered(
            line=line,
            id=id,
            rollouts=mine,
            model=str(completion.get("model") or ""),
            usage=share,
            outcome=outcome,
            packed=len(lines),
            asked_model=asked_model,
        )
        for (line, (id, mine)), share in zip(lines.items(), shares, strict=True)
    ]


def failed_lines(packed: PackedRequest, outcome: Outcome) -> list[Failed]:
    """One record per line of a failed request."""
    assert outcome.failure is not None
    lines: dict[int, tuple[Unit, list[tuple[int, int]]]] = {}
    for item in packed.slices:
        lines.setdefault(item.unit.line, (item.unit, []))[1].extend(item.wanted)
    return [
        Failed(unit.line, unit.id, unit.request, tuple(wanted), outcome.failure, outcome)
        for unit, wanted in lines.values()
    ]
