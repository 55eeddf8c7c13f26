"""Decides about one rollout: the schema first, then the hook, both beside the driver's loop and within a time limit."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any

from brimful.hooks import Completion, Line
from brimful.outcome import Rollout
from brimful.packing.units import Unit
from brimful.run.checks.bounded import BoundedCalls, OutOfTime
from brimful.run.checks.options import CheckOptions
from brimful.run.checks.schema import Invalid
from brimful.run.checks.verdict import Accepted, Broken, Rejected, Verdict
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.output.records import given_id

OUT_OF_TIME = "out of time"
"""The kind of the fault of a call that took too long."""


class Checker:
    """Checks rollouts against a schema and with a hook. Use on one event loop."""

    def __init__(self, options: CheckOptions, sweep: Sweep = NO_SWEEP) -> None:
        self._sweep = sweep
        self._schema, self._hook = options.schema, options.hook
        self._calls = BoundedCalls(options.workers, options.timeout_s)

    @property
    def stuck(self) -> int:
        """Calls that took too long and have not ended since."""
        return self._calls.stuck

    async def check(self, unit: Unit, rollout: Rollout, *, tries: int, model: str) -> Verdict:
        """``unit``: the rollout's line. Raises Abandoned."""
        line = Line(
            number=self._sweep.line(unit.line),
            id=given_id(unit),
            prompt=unit.request.prompts[rollout.prompt_index],
            columns=copy.deepcopy(dict(unit.columns)),
            request=dict(unit.request.fields),
        )
        completion = Completion(
            text=rollout.text,
            finish_reason=rollout.finish_reason,
            choice_index=rollout.choice_index,
            prompt_index=rollout.prompt_index,
            tries=tries,
            model=model,
            choice=dict(rollout.choice),
            message=rollout.message,
        )
        try:
            return await self._verdict(line, completion)
        except OutOfTime:
            limit = f"{self._calls.timeout_s:g} s"
            return Broken(f"took longer than {limit} (--hook-timeout)", OUT_OF_TIME)

    async def _verdict(self, line: Line, completion: Completion) -> Verdict:
        found: Any = await self._calls.call(self._in_thread, line, completion)
        if isinstance(found, Completion):
            assert self._hook is not None
            found = await self._calls.run(self._hook.call, line, found)
        elif inspect.isawaitable(found):
            assert self._hook is not None
            found = await self._calls.run(self._hook.end, found)
        verdict: Verdict = found
        return verdict

    def _in_thread(self, line: Line, completion: Completion) -> Any:
        """A verdict; the completion with its value, for an async hook; or what a hook wants awaited."""
        if self._schema is not None:
            try:
                completion = replace(completion, value=self._schema.check(completion.text))
            except Invalid as error:
                return Rejected("schema", str(error))
            except Exception as error:  # a validator of the user's own model may raise anything
                return Broken(f"{type(error).__name__}: {error}", f"schema {type(error).__name__}")
        if self._hook is None:
            return Accepted()
        return completion if self._hook.is_async else self._hook.begin(line, completion)

    def abandon(self) -> None:
        """All checks raise Abandoned, those under way and those that wait for their turn."""
        self._calls.abandon()

    def close(self) -> None:
        self._calls.close()
