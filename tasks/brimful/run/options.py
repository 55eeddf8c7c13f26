"""The options of ``brimful run``, and which of them must stay the same when the run is continued."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.names import Workload
from brimful.nesting import MOST_WHOLE, unsendable
from brimful.packing.units import PackOption
from brimful.profile import Profile
from brimful.run.checks.options import CheckOptions
from brimful.run.input.columns import KEEP_ALL, Keep
from brimful.run.input.reader import ReadOptions
from brimful.run.output.paths import Order, OutputFormat


@dataclass(frozen=True)
class RunOptions:
    """What a run was asked to do."""

    read: ReadOptions
    output: str
    form: OutputFormat = OutputFormat.ROLLOUTS
    order: Order = Order.COMPLETION
    keep: Keep = KEEP_ALL
    pack: PackOption = "auto"
    strict: bool = False
    retry_errors: bool = False
    fresh: bool = False
    keep_going: bool = False
    """Go on though the provider refuses the first requests in the same words."""
    budget_tokens: int | None = None
    budget: float | None = None
    """Money, in the currency of the prices."""
    pace: Path | None = None
    """A file with the number of the last line that may be asked for; None: all may."""
    workers: int | None = None
    rehearse: bool = False
    checks: CheckOptions | None = None
    """How rollouts are checked before they are accepted; None: they are not."""

    @property
    def to_stdout(self) -> bool:
        return self.output == "-"

    @property
    def batch(self) -> bool:
        """Whether requests have the workload batch, which may cost less."""
        return self.read.workload is Workload.BATCH

    def parameters(self, profile: Profile) -> dict[str, Any]:
        """The options that decide texts and output format, JSON-ready: a resumed run must have the same ones."""
        return {
            "provider": profile.name,
            "rehearse": self.rehearse,
            "input-format": self.read.form.value,
            "mode": self.read.mode.value if self.read.mode else None,
            "model": self.read.defaults.get("model", profile.model),
            "system": self.read.system,
            "prompt-column": self.read.names.prompt,
            "id-column": self.read.names.id,
            "header": None if self.read.header else False,
            **(self.read.templates.parameters if self.read.templates is not None else {}),
            **self.read.sweep.parameters,
            "pass": sorted(self.read.passed) or None,
            "column": sorted(self.read.columns) or None,
            "keep": None if self.keep == KEEP_ALL else str(self.keep),
            **(self.checks.parameters() if self.checks else {}),
            **{name: value for name, value in sorted(self.read.defaults.items()) if name != "model"},
        }


def parse_parameters(given: list[str]) -> dict[str, Any]:
    """``--param top_p=0.9``: the value is JSON, or else a string. Raises UsageError."""
    fields: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--param {pair}: must be NAME=VALUE, for instance --param top_p=0.9")
        if (name := name.strip()) in fields:
            raise UsageError(f"--param {name}: is given twice; give it once (several values of a field: --sweep FILE)")
        try:
            fields[name] = json.loads(text)
        except json.JSONDecodeError:
            fields[name] = text
        except ValueError:  # thousands of digits
            fields[name] = MOST_WHOLE + 1
        if fault := unsendable({name: fields[name]}):
            raise UsageError(f"--param {fault}")
    return fields
