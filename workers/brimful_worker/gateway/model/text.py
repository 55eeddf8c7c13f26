"""The mock model: varied pseudo-English, the same for the same (prompt, choice, seed, model), and its token counts."""

from __future__ import annotations

import math
from hashlib import blake2b, shake_128
from itertools import cycle, islice
from typing import Any, NamedTuple

from brimful.runtime import json_bytes

_DET = "the a its every some this that one another no"
_ADJ = (
    "quiet open narrow bright early old distant careful green heavy plain simple golden common curious gentle hidden "
    "broad sudden steady western fragile patient public wooden winter northern shallow familiar foreign"
)
_NOUN = (
    "river harbour question garden letter window engine market city mountain teacher signal orchard bridge machine "
    "morning island method story captain theory station winter kitchen border forest village library shadow answer "
    "season number valley painter lantern ocean field tower path"
)
_VERB = (
    "follows keeps carries remembers opens crosses answers leaves meets describes turns holds reaches explains builds "
    "finds changes gathers warms measures"
)
_LINK = "near beyond under after before without across along behind inside and while because though until"
_PLACES = [[f" {word}" for word in words.split()] for words in (_DET, _ADJ, _NOUN, _VERB, _DET, _NOUN, _LINK)]
_PLACES[5] += [f" {word}{mark}" for word in _NOUN.split() for mark in (",", ".", ".")]
# One table of 256 tokens for each position in a sentence: a random byte selects a token.
_TABLES = [list(islice(cycle(words), 256)) for words in _PLACES]
_ODD = [
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r\n", "\n", "\r", '"', "'", "\\", "\x00", "\x7f", "\ufeff",
    "\U0001f600", "\U0001f469\u200d\U0001f680", "e\u0301", "\u05d0\u0628", "\u6f22\u5b57", "\ud800", "\udfff", "\t",
]  # fmt: skip


_NATURAL_TOKENS = (24, 400)
"""Texts end by themselves (``stop``) after a number of tokens in this range, if ``max_tokens`` allows it."""


def prompt_digest(prompt: Any) -> bytes:
    """Eight bytes that identify a prompt: a string, a ``list[int]`` or chat messages."""
    if isinstance(prompt, str):
        data = b"s" + prompt.encode("utf-8", "surrogatepass")
    else:
        data = b"o" + json_bytes.encode(prompt, sort=True)
    return blake2b(data, digest_size=8).digest()


class SampledText(NamedTuple):
    text: str
    tokens: int
    finish_reason: str


def sample_text(
    digest: bytes,
    choice: int,
    *,
    max_tokens: int,
    seed: int | None = None,
    model: str = "",
    greedy: bool = False,
    odd: bool = False,
) -> SampledText:
    """One choice of the prompt with this :func:`prompt_digest`.

    ``greedy`` (temperature 0) gives the same text for every choice and seed. ``odd`` mixes in characters that careless
    readers mishandle. The finish reason is ``length`` at ``max_tokens``, or ``stop`` if the text ended before.
    """
    identity = f"{model}\0{'greedy' if greedy else f'{choice}:{seed}'}".encode("utf-8", "surrogatepass")
    key = blake2b(identity, digest_size=16, key=digest).digest()
    low, high = _NATURAL_TOKENS
    tokens = min(max_tokens, int(low * math.exp(int.from_bytes(key[:2], "big") / 65536 * math.log(high / low))))
    phase = key[2] % len(_TABLES)
    tables = islice(cycle(_TABLES), phase, phase + tokens)
    words = [table[byte] for table, byte in zip(tables, shake_128(key).digest(tokens), strict=True)]
    if odd:
        words = [word if place % 3 else _ODD[(key[3] + place) % len(_ODD)] for place, word in enumerate(words)]
    return SampledText("".join(words), tokens, "length" if tokens == max_tokens else "stop")


def count_tokens(prompt: Any) -> int:
    """The mock model's token count of a prompt: one, plus one a word (long words count more)."""
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
