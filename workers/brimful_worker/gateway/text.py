"""What the stand-in model says: varied pseudo-English, the same for the same (prompt, choice, seed, model)."""

from __future__ import annotations

import math
from hashlib import blake2b, shake_128
from itertools import cycle, islice
from typing import Any

from brimful.runtime import json_bytes


def _words(text: str) -> list[str]:
    return text.split()


_DET = _words("the a its every some this that one another no")
_ADJ = _words(
    "quiet open narrow bright early old distant careful green heavy plain simple golden common curious gentle hidden "
    "broad sudden steady western fragile patient public wooden winter northern shallow familiar foreign"
)
_NOUN = _words(
    "river harbour question garden letter window engine market city mountain teacher signal orchard bridge machine "
    "morning island method story captain theory station winter kitchen border forest village library shadow answer "
    "season number valley painter lantern ocean field tower path"
)
_VERB = _words(
    "follows keeps carries remembers opens crosses answers leaves meets describes turns holds reaches explains builds "
    "finds changes gathers warms measures"
)
_LINK = _words("near beyond under after before without across along behind inside and while because though until")
_PLACES = [[f" {word}" for word in words] for words in (_DET, _ADJ, _NOUN, _VERB, _DET, _NOUN, _LINK)]
_PLACES[5] += [f" {word}{mark}" for word in _NOUN for mark in (",", ".", ".")]
# One table of 256 tokens for each place in a sentence, so that a random byte is a token.
_TABLES = [list(islice(cycle(words), 256)) for words in _PLACES]
_ODD = [
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r\n", "\n", "\r", '"', "'", "\\", "\x00", "\x7f", "\ufeff",
    "\U0001f600", "\U0001f469\u200d\U0001f680", "e\u0301", "\u05d0\u0628", "\u6f22\u5b57", "\ud800", "\udfff", "\t",
]  # fmt: skip


def prompt_digest(prompt: Any) -> bytes:
    """Eight bytes that stand for a prompt: a string, a ``list[int]`` or chat messages."""
    if isinstance(prompt, str):
        data = b"s" + prompt.encode("utf-8", "surrogatepass")
    else:
        data = b"o" + json_bytes.encode(prompt, sort=True)
    return blake2b(data, digest_size=8).digest()


def sample_text(
    digest: bytes,
    choice: int,
    *,
    max_tokens: int,
    seed: int | None = None,
    model: str = "",
    greedy: bool = False,
    natural: tuple[int, int] = (24, 400),
    odd: bool = False,
) -> tuple[str, int, str]:
    """(text, its tokens, finish reason) of one choice of the prompt with that :func:`prompt_digest`.

    ``greedy`` (temperature 0) says the same in every choice and under every seed. ``odd`` mixes in what breaks careless
    readers. The finish reason is ``length`` at ``max_tokens``, or ``stop`` where the text ended before.
    """
    identity = f"{model}\0{'greedy' if greedy else f'{choice}:{seed}'}".encode("utf-8", "surrogatepass")
    key = blake2b(identity, digest_size=16, key=digest).digest()
    low, high = natural
    length = int(low * math.exp(int.from_bytes(key[:2], "big") / 65536 * math.log(max(high / low, 1.0))))
    tokens = min(max_tokens, max(1, length))
    phase = key[2] % len(_TABLES)
    tables = islice(cycle(_TABLES), phase, phase + tokens)
    words = [table[byte] for table, byte in zip(tables, shake_128(key).digest(tokens), strict=True)]
    if odd:
        words = [word if place % 3 else _ODD[(key[3] + place) % len(_ODD)] for place, word in enumerate(words)]
    return "".join(words), tokens, "length" if tokens == max_tokens else "stop"


def count_tokens(prompt: Any) -> int:
    """The stand-in's token count of a prompt: one to begin with, then one a word (longer ones count more)."""
    if isinstance(prompt, str):
        return 1 + max(len(prompt.split()), len(prompt) // 6)
    if prompt and isinstance(prompt[0], int):
        return len(prompt)
    return sum(4 + count_tokens(_content(message)) for message in prompt)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)
