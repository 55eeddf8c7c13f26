"""A service with the light ``pip install brimful``: single requests, maps and Celery's own canvas, without asyncio.

BRIMFUL_REDIS_URL=redis://… python examples/service_sync.py
"""

from celery import group

from brimful import BrimfulError, Fleet, sample


def one() -> None:
    """``get`` returns the provider's completion, or raises a brimful error that says what happened."""
    result = sample.delay("The oldest desert in the world is", max_tokens=16, temperature=0.7)
    try:
        completion = result.get(timeout=120)
    except BrimfulError as error:
        print("no completion:", error)
    else:
        print("one:", completion["choices"][0]["text"])


def several_choices() -> None:
    """n choices of one prompt take one slot and one start."""
    completion = sample.delay("A name for a small fishing boat:", n=4, max_tokens=8).get(timeout=120)
    for choice in completion["choices"]:
        print(f"choice {choice['index']}:", choice["text"])


def canvas() -> None:
    """Celery's canvas works as usual; with ``queue="batch"`` interactive requests are served first."""
    prompts = ["Once upon a", "Knock, knock.", "In the beginning,"]
    results = group(sample.s(prompt, max_tokens=8).set(queue="batch") for prompt in prompts).apply_async()
    for prompt, completion in zip(prompts, results.get(timeout=120), strict=True):
        print(f"{prompt!r}:", completion["choices"][0]["text"])


def thousands() -> None:
    """A map packs many prompts into one request and survives killed workers; results come in order."""
    prompts = (f"In one line, {bird} is" for bird in ("the puffin", "the hoopoe", "the shoebill", "the lyrebird"))
    with Fleet() as fleet:
        for done in fleet.map(prompts, max_tokens=12):
            print(f"{done.index}:", done.texts[0] if done.failure is None else done.failure.message)


if __name__ == "__main__":
    one()
    several_choices()
    canvas()
    thousands()
