"""``brimful run`` from its options to the exit code: checks, a fleet, a session, signals, the end table."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from brimful.addresses import FleetAddress
from brimful.config import Settings
from brimful.credentials import shown_url
from brimful.errors import BrimfulError, ExitCode, UsageError
from brimful.run.display.display import Display, PlainDisplay
from brimful.run.display.gauges import GaugeReader
from brimful.run.display.summary import Summary
from brimful.run.options import RunOptions
from brimful.run.prepare import Prepared, prepare
from brimful.run.remote_control import RemoteControl, has_entry
from brimful.run.session import Session
from brimful.run.signals import Signals
from brimful.runtime.extras import LocalFleet, local_fleet
from brimful.runtime.interrupt import unwinding
from brimful.state.fleets import check_submitter
from brimful.state.probes import check_provider, check_servers, worker_queues
from brimful.state.provider import as_published
from brimful.state.redis_retry import forget_refusals, recent_refusal
from brimful.state.redis_url import address_of
from brimful.state.runs.heartbeat import Heartbeat
from brimful.words.counted import counted

if TYPE_CHECKING:
    from brimful.dispatch.driver import Driver

_PINGS = 8
_GC_THRESHOLDS = 1_000_000, 20, 50
"""Of the garbage collector while a run lasts: new objects before it looks, more than a run holds at a time, and how
rarely it walks more."""

MakeDriver = Callable[[FleetAddress, Prepared, Heartbeat | None], "Driver"]
"""Makes the driver for a fleet, a run, and what keeps the run's entry."""


@dataclass(frozen=True)
class DisplayOptions:
    """What a run prints."""

    json: bool = False
    progress: bool = True
    command: tuple[str, ...] = ("brimful", "run")
    """The command as typed, for the one that resumes the run."""


def run_to_end(
    options: RunOptions, settings: Settings, display: DisplayOptions, make_driver: MakeDriver | None = None
) -> ExitCode:
    """Sample the input; returns the exit code. Raises BrimfulError if nothing could be sampled, or the fleet failed."""
    if options.to_stdout and display.json:
        raise UsageError("--json and -o - would both write standard output: name an output file")
    forget_refusals()
    local = options.rehearse or settings.redis_url is None
    with unwinding():
        if not local and settings.redis_url is not None:
            check_submitter(settings)
            settings = asyncio.run(as_published(settings.redis_url, settings))
        prepared = prepare(options, settings.profile, Display().say if display.progress else lambda text: None)
    try:
        if local and not options.rehearse and not prepared.complete:
            _ = settings.api_base, settings.api_key  # raises SettingError if one is missing
        launch = _Launch(prepared, settings, display, make_driver or partial(_driver, settings, local))
        with launch.signals, _stdout_for_data(options), _rare_garbage_collection():
            return asyncio.run(launch.run(local))
    finally:
        prepared.close()


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Let thousands of requests in flight be walked less often: they are long-lived, and next to none are garbage."""
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _stdout_for_data(options: RunOptions) -> contextlib.AbstractContextManager[object]:
    """What a hook prints goes to stderr: standard output is for rollouts and ``--json``."""
    return contextlib.redirect_stdout(sys.stderr) if options.checks is not None else contextlib.nullcontext()


class _Launch:
    """One run: its display, its fleet if that is local, its session; and what signals do to them."""

    def __init__(
        self, prepared: Prepared, settings: Settings, options: DisplayOptions, make_driver: MakeDriver
    ) -> None:
        self._prepared = prepared
        self._settings = settings
        self._options = options
        self._make_driver = make_driver
        self._gauges = GaugeReader()
        self._display = _display(options, self._gauges, to_stdout=prepared.options.to_stdout)
        self._stdout = sys.stdout
        self._session: Session | None = None
        self._fleet: LocalFleet | None = None
        self._fleet_stopping = False
        self._interrupted = False
        self.signals = Signals(self._interrupt, self._kill_workers)

    async def run(self, local: bool) -> ExitCode:
        self.signals.attach(asyncio.get_running_loop())
        try:
            for note in self._prepared.notes:
                self._display.say(note)
            if self._prepared.complete:
                return await self._run_session(None)
            if local:
                return await self._run_with_local_fleet()
            await asyncio.to_thread(check_servers, self._settings)
            self._say_if_no_worker_answers(address_of(self._settings))
            return await self._run_session(self._settings)
        finally:
            self._display.close()

    async def _run_with_local_fleet(self) -> ExitCode:
        options, settings = self._prepared.options, self._settings
        if not options.rehearse:
            await asyncio.to_thread(check_provider, settings)
        workers = options.workers or settings.workers
        fleet = local_fleet(settings, workers=workers, rehearse=options.rehearse)
        try:
            await asyncio.to_thread(fleet.start)
            self._fleet = fleet
            if fleet.data_loss:
                self._display.say(fleet.data_loss)
            where = "a rehearsal against the mock gateway" if options.rehearse else shown_url(settings.api_base)
            found = settings.provider_choice
            which = f", provider {found.name} ({found.why})" if found.why and not options.rehearse else ""
            self._display.say(f"{counted(workers, 'worker')} on this machine, {where}{which}")
            return await self._run_session(fleet.settings)
        finally:
            self._fleet, self._fleet_stopping = fleet, True
            # While Redis refuses commands, workers cannot store the outcomes that they would wait for.
            abandon = recent_refusal() or (self._session is not None and self._session.interrupts > 1)
            await asyncio.to_thread(fleet.kill if abandon else fleet.stop)

    async def _run_session(self, settings: Settings | None) -> ExitCode:
        """Sample with the fleet of ``settings``; None: nothing is left to ask."""
        if self._interrupted:
            self._display.say("interrupted before any API call was made")
            return ExitCode.INTERRUPTED
        self._session = session = Session(self._prepared, self._display, check_fleet=self._check_fleet)
        driver = remote = None
        if settings is not None:
            self._gauges.connect(settings)
            if has_entry():
                remote = RemoteControl(self._prepared, settings, session, self._display.say)
            heartbeat = remote.heartbeat if remote is not None else None
            driver = self._make_driver(address_of(settings), self._prepared, heartbeat)
        try:
            return ExitCode((await session.run(driver)).exit_code)
        finally:
            if session.summary is not None:
                self._print(session.summary)
            if driver is not None:
                await driver.aclose()
            if remote is not None:
                await remote.end()
            await self._gauges.aclose()

    def _print(self, summary: Summary) -> None:
        summary.next = self._next_command(summary)
        self._display.end(summary)
        if self._options.json:
            print(json.dumps(summary.as_json()), file=self._stdout, flush=True)

    def _next_command(self, summary: Summary) -> str | None:
        """The command that resumes the run, or retries its failures."""
        if self._prepared.paths is None:
            return None
        words = [word for word in self._options.command if word != "--fresh"]
        options = self._prepared.options
        if summary.ended == "budget" and (options.budget_tokens is not None or options.budget is not None):
            return f"{shlex.join(words)}   # with more {'--budget' if options.budget else '--budget-tokens'}"
        if summary.ended != "done" or summary.left:
            return shlex.join(words)
        if summary.failed_passing:
            return shlex.join(words if "--retry-errors" in words else [*words, "--retry-errors"])
        return None

    def _interrupt(self) -> None:
        if self._fleet_stopping:
            self._kill_workers()
        elif self._session is not None:
            self._session.interrupt()
        else:
            self._interrupted = True  # the fleet is starting, and is stopped once it has started

    def _check_fleet(self) -> None:
        try:
            if self._fleet is not None:
                self._fleet.check()
        except BrimfulError as error:
            raise recent_refusal() or error from None

    def _kill_workers(self) -> None:
        self._display.abandon()
        for pid in self._fleet.worker_pids if self._fleet is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _say_if_no_worker_answers(self, address: FleetAddress) -> None:
        """Say so once if the fleet has no workers yet; the run waits for them meanwhile."""
        from celery import Celery  # noqa: F401 - celery's lazy module fails if two threads import it at once

        loop, visibility_s = asyncio.get_running_loop(), self._settings.visibility_timeout_s

        def ask() -> None:
            with contextlib.suppress(Exception):  # this hint must not stop a run
                # A worker that is still starting does not get a ping sent before it subscribed: ping each second.
                if not any(worker_queues(address, visibility_s, timeout_s=1.0, limit=1) for _ in range(_PINGS)):
                    text = "no worker answers yet: waiting for one; start it with `brimful worker`"
                    loop.call_soon_threadsafe(self._display.say, text)

        threading.Thread(target=ask, daemon=True, name="brimful-ping").start()


def _display(options: DisplayOptions, gauges: GaugeReader, *, to_stdout: bool) -> Display:
    table = not options.json
    if not options.progress:
        return Display(table=table)
    beside_records = to_stdout and sys.stdout.isatty()
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or beside_records:
        return PlainDisplay(gauges, table=table)
    from brimful.run.display.terminal import TerminalDisplay  # rich is slow to import

    return TerminalDisplay(gauges, table=table)


def _driver(
    settings: Settings, local: bool, address: FleetAddress, prepared: Prepared, heartbeat: Heartbeat | None
) -> Driver:
    from brimful.dispatch.driver import Driver

    workers = prepared.options.workers or settings.workers

    return Driver(
        address,
        prepared.run,
        prepared.profile,
        pack=prepared.options.pack,
        workload=prepared.options.read.workload,
        timeout_s=settings.timeout_s,
        weight=settings.weight,
        sync=prepared.sync if prepared.files is not None else None,
        stop_if_refused=not prepared.options.keep_going,
        starting_places=workers * settings.concurrency if local else None,
        heartbeat=heartbeat,
    )
