"""A service without brimful installed: its own Celery app on the fleet's Redis sends the task by its name.

BRIMFUL_REDIS_URL=redis://… python examples/service_stranger.py
"""

import os
from typing import Any

from celery import Celery

URL = os.environ["BRIMFUL_REDIS_URL"]
app = Celery("somebody-else", broker=URL, backend=URL)


def ask(prompt: str, **fields: object) -> Any:
    """Celery's handle of the task. ``fields`` are the provider's: max_tokens, n, temperature, stop, model …

    The queue "interactive" is served before "batch". Celery's default queue is served too.
    """
    return app.send_task("brimful.sample", args=[prompt], kwargs=fields, queue="interactive")


if __name__ == "__main__":
    questions = ["The Strait of Gibraltar separates", "Water boils at a lower temperature in La Paz because"]
    results = [ask(question, max_tokens=16) for question in questions]
    for question, result in zip(questions, results, strict=True):
        completion = result.get(timeout=120)  # the provider's completion, as its documentation shows it
        print(question, "→", completion["choices"][0]["text"])
