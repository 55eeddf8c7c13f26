"""Outputs of runs that nobody sampled: records with scores, columns and failures, as many as are asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.run.output.records import dump_line

WORDS = [
    "the", "of", "a", "model", "answer", "because", "number", "therefore", "we", "find", "that", "each", "step",
    "gives", "probability", "light", "energy", "river", "proof", "let", "integer", "function", "limit", "sum", "over",
    "all", "pairs", "history", "empire", "trade", "temperature", "pressure", "cell", "protein", "market", "price",
]  # fmt: skip
SUBJECTS = ("algebra", "history", "physics", "biology")
_BEGAN = 1_796_086_216.0


def make_run(out: Path, prompts: int, n: int, *, words: int = 120, seed: int = 1, keep: bool = True) -> Path:
    """Write ``prompts`` x ``n`` rollouts of two models, one prompt in a hundred failed. ``words``: of most rollouts.

    ``keep``: the records hold their prompt.
    """
    rnd = random.Random(seed)
    with out.open("wb") as rollouts, out.with_name(out.name + ".errors.jsonl").open("wb") as failures:
        for line in range(1, prompts + 1):
            subject = rnd.choice(SUBJECTS)
            prompt = (
                f"{line}: how is {rnd.choice(WORDS)} to {rnd.choice(WORDS)} in {subject}? Work it out for {line % 97}."
            )
            shared = {"id": f"{subject}-{line}", "line": line, "of": n, "attempts": 1, "request_id": f"r{line}"}
            shared["input"] = {"subject": subject, "level": rnd.randint(1, 5), "answer": str(rnd.randint(1, 10**9))}
            if keep:
                shared["prompt"] = prompt
            if rnd.random() < 0.01:
                cause = rnd.choice(("content_filter", "timeout"))
                wanted = [[0, choice] for choice in range(n)]
                failures.write(dump_line(shared | {"cause": cause, "message": f"{cause}: refused", "wanted": wanted}))
                continue
            model = ("llama-8b", "qwen-32b")[line % 2]
            for record in _rollouts(rnd, n, words, 0.55 + 0.17 * (line % 2), _BEGAN + line / 20):
                rollouts.write(dump_line(shared | {"model": model} | record))
    return out


def _rollouts(rnd: random.Random, n: int, words: int, score: float, began: float) -> Iterator[dict[str, Any]]:
    for choice in range(n):
        length = max(1, int(rnd.lognormvariate(0, 0.7) * words))
        seconds = round(0.2 + length * 0.01, 3)
        mark = round(min(1.0, max(0.0, rnd.gauss(score, 0.2))), 3)
        yield {
            "prompt_index": 0,
            "choice_index": choice,
            "text": " ".join(rnd.choices(WORDS, k=length)),
            "finish_reason": "length" if rnd.random() < 0.07 else "stop",
            "usage": {"prompt_tokens": 20, "completion_tokens": length, "total_tokens": 20 + length},
            "packed": 1,
            "started_at": began,
            "ended_at": began + seconds,
            "waited_s": round(rnd.random() * 3, 3),
            "provider_s": seconds,
            "retrying_s": 0.0,
            "hook": {"score": mark, "correct": mark > 0.6},
        }
