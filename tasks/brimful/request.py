"""One request to the provider, checked when it is parsed.

A request is the provider's own JSON object. brimful reads ``prompt`` or ``messages``, ``n``, ``max_tokens`` and
``model``, and passes every other field on unchanged. Four keys are brimful's and never reach the provider: ``id``,
``mode``, ``workload`` and ``system``.

Strings may hold anything that JSON can, lone surrogates included, which a schema library would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatch
from typing import Any, NamedTuple, TypeVar

from brimful.errors import BadRequest, RequestTooLarge
from brimful.names import IDEMPOTENCY_KEY, Mode, Workload
from brimful.nesting import MOST_WHOLE, characters, unsendable
from brimful.profile import Profile
from brimful.words.counted import counted
from brimful.words.values import kind_of, shown

_Kind = TypeVar("_Kind", bound=StrEnum)

_MEMBERS: Mapping[Any, Mapping[str, Any]] = {
    kind: {str(member): member for member in kind} for kind in (Mode, Workload)
}
"""By their values: to call the class costs ten times as much, twice for each request."""
_PROMPTS = ("prompt", "messages")
CONTROL_FIELDS = frozenset({"id", "mode", "workload", "system"})
_UNBOUND = {Mode.CHAT: 512}
"""Tokens assumed for a choice without ``max_tokens``: 16 on the completions endpoint, more where the model decides."""
_CHARS_PER_TOKEN = 4
"""A rough estimate, never used for a limit of the provider's."""
MOST_TOKENS = 10**12
"""Of one request. Sums of tokens are kept in Redis, whose numbers end at 2**63."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call to the provider, built by :meth:`parse`."""

    fields: Mapping[str, Any]
    """The provider's fields as given. Holds ``prompt`` or ``messages``, never both."""
    id: str = ""
    mode: Mode = Mode.COMPLETION
    workload: Workload = Workload.BATCH
    _hold: int | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | str | list[Any], profile: Profile, **more: Any) -> Request:
        """A request from a prompt (a string, a list of strings or of token ids) or from a mapping of fields.

        ``more`` holds fields that take precedence over ``raw``'s; only one of the two may hold the prompt. ``mode``
        defaults to chat where there are ``messages``, else to the profile's first mode. In chat mode a prompt string
        becomes one user message, after ``system`` if that is given. Raises BadRequest or RequestTooLarge.
        """
        merged: dict[str, Any] = dict(raw) if isinstance(raw, (dict, Mapping)) else {"prompt": raw}
        for name in _PROMPTS if more else ():
            if more.get(name) is not None and any(merged.get(other) is not None for other in _PROMPTS):
                raise BadRequest(f"{name}: given twice, in the request and as {name}=…; give one of them")
        merged.update(more)
        fields = {name: value for name, value in merged.items() if name not in CONTROL_FIELDS and value is not None}
        mode = _mode(merged.get("mode"), fields, profile)
        if mode is Mode.CHAT or "messages" in fields:
            _make_chat(fields, merged.get("system"))
        elif merged.get("system") is not None:
            raise BadRequest("system: a system prompt needs the chat endpoint (mode 'chat', --chat)")
        request = cls(
            fields=fields,
            id="" if merged.get("id") is None else str(merged["id"]),
            mode=mode,
            workload=_choice(Workload, "workload", merged.get("workload") or Workload.BATCH),
        )
        request.check(profile)
        return request

    @property
    def prompts(self) -> list[Any]:
        """The prompts, each a string or a ``list[int]``; the messages count as one."""
        if "messages" in self.fields:
            return [self.fields["messages"]]
        prompt = self.fields["prompt"]
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        return list(prompt)

    @property
    def prompt_count(self) -> int:
        one = "messages" in self.fields or isinstance(self.fields["prompt"], str)
        return 1 if one else len(self.prompts)

    @property
    def n(self) -> int:
        n = self.fields.get("n")
        return 1 if n is None else int(n)

    @property
    def choices(self) -> int:
        """prompts x n: how many choices a complete answer has."""
        fields = self.fields
        one = "messages" in fields or isinstance(fields["prompt"], str)
        n = fields.get("n")
        return (1 if one else len(self.prompts)) * (1 if n is None else int(n))

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of one choice; None where the provider decides."""
        value = self.fields.get("max_completion_tokens", self.fields.get("max_tokens"))
        return None if value is None else int(value)

    @property
    def tokens_at_most(self) -> int | None:
        """prompts x n x max_tokens; None without ``max_tokens``."""
        most = self.max_tokens
        return None if most is None else self.choices * most

    @property
    def asked(self) -> int:
        """Tokens that it may generate; an estimate without ``max_tokens``."""
        most = self.tokens_at_most
        return _UNBOUND.get(self.mode, 16) * self.choices if most is None else most

    @property
    def hold(self) -> int:
        """Estimated tokens that the provider holds while the request runs: the prompts' and all it may generate.

        Computed once: a chat of millions of values takes a second.
        """
        if (hold := self._hold) is None:
            hold = sum(map(_token_estimate, self.prompts)) + self.asked
            object.__setattr__(self, "_hold", hold)
        return hold

    def body(self, profile: Profile) -> dict[str, Any]:
        """The JSON body to send: the fields as given, and the profile's model and further fields where they are not."""
        body = dict(self.fields)
        if "model" not in body and profile.model is not None:
            body = {"model": profile.model, **body}
        if (
            profile.max_completion_tokens
            and self.mode is Mode.CHAT
            and "max_tokens" in body
            and any(fnmatch(str(body.get("model")), model) for model in profile.max_completion_tokens)
        ):
            body.setdefault("max_completion_tokens", body.pop("max_tokens"))
        return {**profile.extra_body, **body} if profile.extra_body else body

    def as_message(self) -> dict[str, Any]:
        """JSON-ready, for a task message; :meth:`parse` is its inverse."""
        return {**self.fields, "id": self.id, "mode": self.mode.value, "workload": self.workload.value}

    def check(self, profile: Profile) -> None:
        """Raises BadRequest for what the provider refuses by its documentation, or would answer other than in JSON."""
        if fault := unsendable(self.fields):
            raise BadRequest(fault)
        if "messages" in self.fields:
            if "prompt" in self.fields:
                raise BadRequest("prompt, messages: a request has one of them, not both")
            if self.mode is not Mode.CHAT:
                raise BadRequest(f"messages: only the chat endpoint takes them, not mode {self.mode.value!r}")
            _check_messages(self.fields["messages"])
        else:
            _check_prompt(self.fields.get("prompt"))
        if self.mode not in profile.modes:
            raise BadRequest(f"mode: {profile.name} has no {self.mode.value} endpoint, only {', '.join(profile.modes)}")
        for name in ("n", "max_tokens", "max_completion_tokens"):
            value = self.fields.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadRequest(f"{name}: must be a whole number of at least 1, not {shown(value)}")
        if self.fields.get("stream"):
            raise BadRequest("stream: streaming is not supported; leave it out")
        if "model" in self.fields:
            model = self.fields["model"]
            if not isinstance(model, str):
                raise BadRequest(f"model: must be a string, not {shown(model)}")
            if not model.strip():
                raise BadRequest("model: is empty; name one, or leave it out (--model)")
        elif profile.model is None:
            raise BadRequest(f"model: {profile.name} has no default model; name one (--model)")
        self._check_size(profile)

    def _check_size(self, profile: Profile) -> None:
        prompts, n, most, asked = self.prompt_count, self.n, self.max_tokens, self.asked
        if profile.max_prompts is not None and prompts > profile.max_prompts:
            raise RequestTooLarge(
                f"prompt: {prompts} prompts, but {profile.name} takes {profile.max_prompts} in a request"
            )
        if profile.max_n is not None and n > profile.max_n:
            raise RequestTooLarge(f"n: {n}, but {profile.name} takes at most {profile.max_n}")
        if asked > MOST_TOKENS:
            raise BadRequest(f"n, max_tokens: ask for {asked:,} tokens; at most {MOST_TOKENS:,} in one request")
        if most is None:
            if profile.max_tokens_required and prompts * n > 1:
                raise BadRequest(f"max_tokens: {profile.name} requires it for n > 1 or several prompts (--max-tokens)")
            return
        bound = profile.max_request_tokens
        if bound is not None and asked > bound:
            raise RequestTooLarge(
                f"max_tokens: {counted(prompts, 'prompt')} x n {n} x max_tokens {most} = {asked:,}, "
                f"above {profile.name}'s {bound:,} in one request; ask for less or in several requests"
            )


class SampleArguments(NamedTuple):
    """The arguments of a ``brimful.sample`` task."""

    request: Request
    idempotency_key: str | None

    @classmethod
    def parse(cls, raw: Any, fields: Mapping[str, Any], profile: Profile) -> SampleArguments:
        """``raw``: a prompt, a mapping, or None where ``fields`` hold everything. Raises BadRequest."""
        fields = dict(fields)
        raw = dict(raw) if isinstance(raw, Mapping) else {} if raw is None else raw
        keys = [given.pop(IDEMPOTENCY_KEY, None) for given in (fields, raw) if isinstance(given, dict)]
        key = next((key for key in keys if key is not None), None)
        if key is not None and not (isinstance(key, str) and key):
            raise BadRequest(f"{IDEMPOTENCY_KEY}: must be a string that is not empty, not {shown(key)}")
        return cls(Request.parse(raw, profile, **fields), key)


def _mode(raw: Any, fields: Mapping[str, Any], profile: Profile) -> Mode:
    if raw is not None:
        return _choice(Mode, "mode", raw)
    return Mode.CHAT if "messages" in fields else Mode(profile.modes[0])


def _choice(kind: type[_Kind], name: str, value: Any) -> _Kind:
    if isinstance(value, kind):
        return value
    member: _Kind | None = _MEMBERS[kind].get(value) if isinstance(value, str) else None
    if member is None:
        raise BadRequest(f"{name}: {shown(value)} is not one of {', '.join(kind)}")
    return member


def _make_chat(fields: dict[str, Any], system: Any) -> None:
    if "messages" not in fields:
        prompt = fields.get("prompt")
        if not isinstance(prompt, str):
            _check_prompt(prompt)
            raise BadRequest(f"prompt: the chat endpoint takes one string, or messages, not {kind_of(prompt)}")
        del fields["prompt"]
        fields["messages"] = [{"role": "user", "content": prompt}]
    if system is not None:
        if not isinstance(system, str):
            raise BadRequest(f"system: must be a string, not {kind_of(system)}")
        if isinstance(fields["messages"], list):
            fields["messages"] = [{"role": "system", "content": system}, *fields["messages"]]


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"messages: must be a list of at least one message, not {kind_of(messages)}")
    for place, message in enumerate(messages):
        if not isinstance(message, (dict, Mapping)) or not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{place}]: must be an object with a role, not {kind_of(message)}")


def _check_prompt(prompt: Any) -> None:
    if prompt is None:
        raise BadRequest("prompt: missing; a request needs a prompt (or messages)")
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest(
            f"prompt: must be a string, a list of strings, a list of token ids or lists of those, not {kind_of(prompt)}"
        )
    first = prompt[0]
    if isinstance(first, str):
        wrong = next((place for place, item in enumerate(prompt) if not isinstance(item, str)), None)
    elif isinstance(first, list):
        wrong = next((place for place, item in enumerate(prompt) if not _is_tokens(item)), None)
    else:
        wrong = next((place for place, item in enumerate(prompt) if not _is_token(item)), None)
    if wrong is not None:
        raise BadRequest(
            "prompt: a list holds only strings, only token ids, or only non-empty lists of token ids; "
            f"item {wrong + 1} is {kind_of(prompt[wrong])}"
        )


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WHOLE


def _token_estimate(prompt: Any) -> int:
    if isinstance(prompt, str):
        return 1 + len(prompt) // _CHARS_PER_TOKEN
    if prompt and isinstance(prompt[0], int):
        return len(prompt)
    return sum(1 + characters(message.get("content")) // _CHARS_PER_TOKEN for message in prompt)
