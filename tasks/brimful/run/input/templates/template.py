"""The templates of a run, and the fields of a request that they make from a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.run.input.templates.images import image_url
from brimful.run.input.templates.jinja import JinjaTexts, Text
from brimful.run.input.templates.messages import load_messages, read_text
from brimful.run.input.templates.simple import SimpleText, is_jinja, names_in

CPU_S = 5.0
"""Processor time that the Jinja2 templates may take for one line."""
_SHOWN = 48  # characters of a template among a run's parameters


@dataclass(frozen=True)
class Templates:
    """What ``--template``, ``--system-template`` and ``--messages-template`` hold. At least one field is set."""

    prompt: Text | None = None
    system: Text | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    messages_label: str = ""

    @property
    def asks(self) -> bool:
        """Whether they make the prompt or the messages, which a line then need not hold."""
        return self.prompt is not None or self.messages is not None

    @property
    def parameters(self) -> dict[str, str]:
        """By option, a short text that differs where the templates do: a resumed run must have the same ones."""
        given = {
            "template": self.prompt.text if self.prompt else None,
            "system-template": self.system.text if self.system else None,
            "messages-template": json.dumps(self.messages, sort_keys=True) if self.messages else None,
        }
        return {name: _described(text) for name, text in given.items() if text is not None}

    @property
    def names(self) -> frozenset[str]:
        """The columns that they show, as far as that can be seen in their texts."""
        return frozenset(name for text in _leaves(self.tree) for name in names_in(text.text))

    @property
    def tree(self) -> dict[str, Any]:
        """The fields of a request, with a :class:`Text` for each text to be rendered."""
        fields: dict[str, Any] = {"prompt": self.prompt, "system": self.system}
        if self.messages is not None:
            fields["messages"] = [
                _labelled(message, f"{self.messages_label}, message {place}")
                for place, message in enumerate(self.messages, 1)
            ]
        return {name: value for name, value in fields.items() if value is not None}


def load_templates(
    template: str | None, template_file: str | None, system_template: str | None, messages_template: str | None
) -> Templates | None:
    """From the options of the command; None where none is given. Raises UsageError for one that cannot be used."""
    if sum(each is not None for each in (template, template_file, messages_template)) > 1:
        raise UsageError("--template, --template-file and --messages-template exclude each other: give one of them")
    prompt = Text(_unescaped(template), "--template") if template is not None else None
    if template_file is not None:
        label = f"--template-file {template_file}"
        prompt = Text(read_text(Path(template_file), label).removesuffix("\n"), label)
    if prompt is not None and not prompt.text:
        raise UsageError(f"{prompt.label}: is empty, so that every prompt would be; write one, such as '{{prompt}}'")
    system = Text(_unescaped(system_template), "--system-template") if system_template is not None else None
    messages, label = None, ""
    if messages_template is not None:
        messages, label = tuple(load_messages(Path(messages_template))), f"--messages-template {messages_template}"
    if prompt is None and system is None and messages is None:
        return None
    templates = Templates(prompt, system, messages, label)
    Renderer(templates).close()
    return templates


class Renderer:
    """Renders a run's templates line by line; :meth:`close` it."""

    def __init__(self, templates: Templates, cpu_s: float = CPU_S) -> None:
        """Raises UsageError for a template that is not valid."""
        self._tree = templates.tree
        self._label = templates.messages_label
        texts = list(dict.fromkeys(_leaves(self._tree)))
        self._simple = {text: SimpleText(*text) for text in texts if not is_jinja(text.text)}
        self._jinja = [text for text in texts if text not in self._simple]
        self._process = JinjaTexts(self._jinja, cpu_s) if self._jinja else None
        if self._process is not None:
            self._process.check()

    def fields(self, row: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
        """The fields of the request: ``prompt`` or ``messages``, and ``system``. ``folder``: where images are.

        Raises InputError for a column that is missing, for a template that fails, and for an image.
        """
        rendered = {text: simple.render(row) for text, simple in self._simple.items()}
        if self._process is not None:
            rendered |= zip(self._jinja, self._process.render(row), strict=True)
        return {name: self._filled(value, rendered, folder) for name, value in self._tree.items()}

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _filled(self, value: Any, rendered: Mapping[Text, str], folder: Path | None) -> Any:
        if isinstance(value, Text):
            return rendered[value]
        if isinstance(value, list):
            return [self._filled(item, rendered, folder) for item in value]
        if not isinstance(value, dict):
            return value
        filled = {name: self._filled(item, rendered, folder) for name, item in value.items()}
        if set(filled) == {"image"}:
            return {"type": "image_url", "image_url": {"url": image_url(str(filled["image"]), folder, self._label)}}
        return {"type": "text", **filled} if set(filled) == {"text"} else filled


def _leaves(value: Any) -> Iterator[Text]:
    if isinstance(value, Text):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _labelled(value: Any, label: str) -> Any:
    """``value`` with its texts as templates. The names of objects are none."""
    if isinstance(value, str):
        return Text(value, label)
    if isinstance(value, list):
        return [_labelled(item, label) for item in value]
    return {name: _labelled(item, label) for name, item in value.items()} if isinstance(value, dict) else value


def _unescaped(text: str) -> str:
    r"""``\n`` in an option is a line break, since shells have no easy way to write one, and ``\\`` a backslash."""
    return "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))


def _described(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (sha256 {digest})"
