"""``brimful doctor``: checks key, URL, Redis, clock, limits and workers, and says what to do about each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import redis
import typer
from kombu.exceptions import OperationalError

from brimful.cli.style import paint
from brimful.config import Settings
from brimful.doctor import Check, Level
from brimful.doctor.fleet import dead_letter_checks, fleet_checks, limit_checks, worker_checks
from brimful.doctor.machine import machine_checks
from brimful.doctor.provider import provider_checks
from brimful.doctor.rabbitmq import broker_checks
from brimful.doctor.server import server_checks
from brimful.doctor.watching import watching_checks
from brimful.errors import BrokerUnreachable, ExitCode, RedisUnreachable, SettingError, UsageError
from brimful.profile import Profile
from brimful.state.probes import connect
from brimful.state.target import RedisTarget, find_redis

_COLOURS = {Level.OK: "green", Level.NOTE: "blue", Level.WARN: "yellow", Level.FAIL: "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
    flower: Annotated[
        str | None, typer.Option(help="Flower's URL. Default: by BRIMFUL_FLOWER_PORT, if that is set.")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(help="Prometheus's URL, to look at its targets and rules too. Default: it is left out."),
    ] = None,
) -> None:
    """Check everything that a fleet needs, and say what to do about what is wrong. Exits 2 if something will not work.

    It asks the provider for its list of models once and samples nothing: no tokens are spent.
    """
    checks = []
    for check in _checks(flower, prometheus):
        checks.append(check)
        if not as_json:
            _print(check)
    failed = any(check.level is Level.FAIL for check in checks)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    raise typer.Exit(ExitCode.USAGE if failed else ExitCode.OK)


def _checks(flower: str | None, prometheus: str | None) -> Iterator[Check]:
    for found, remedy in Settings.unknown_variables():
        yield Check("settings", Level.WARN, found, remedy)
    try:
        settings = Settings.load()
    except SettingError as error:
        yield Check("settings", Level.FAIL, str(error), "correct it; the other checks follow then")
        return
    profile = target = None
    try:
        profile = settings.profile
    except SettingError as error:
        todo = "correct BRIMFUL_PROVIDER; the checks that need no provider follow"
        yield Check("provider", Level.FAIL, str(error), todo)
    yield from machine_checks(profile)
    missing = ""
    try:
        target = find_redis(settings)
    except UsageError as error:
        missing = str(error)
    if profile is not None:
        yield from provider_checks(settings, client_only=target is not None)
    if target is None:
        todo = "nothing, if you only use `brimful run` and `brimful up`: they start an embedded Valkey"
        yield Check("Redis", Level.NOTE, missing, todo)
    else:
        yield from _redis_checks(target, profile, settings)
    yield from watching_checks(settings, flower, prometheus)


def _redis_checks(target: RedisTarget, profile: Profile | None, settings: Settings) -> Iterator[Check]:
    try:
        client = connect(target.url)
    except RedisUnreachable as error:
        found, _, remedy = str(error).rpartition("; ")
        yield Check("Redis", Level.FAIL, found, remedy)
        return
    with client:
        parts = [
            server_checks(target, client, settings.lease_s),
            fleet_checks(target, client, settings),
            worker_checks(target, client, settings),
            dead_letter_checks(client),
        ]
        if settings.broker_url is not None:
            parts.insert(1, broker_checks(settings.broker_url))
        if profile is not None:
            parts.insert(1, limit_checks(target, client, settings))
        away = ""
        for checks in parts:
            try:
                yield from checks
            except BrokerUnreachable as error:
                if away != str(error):  # several checks ask it
                    away = str(error)
                    found, _, remedy = away.rpartition("; ")
                    yield Check("broker", Level.FAIL, found, remedy)
            except (redis.RedisError, OperationalError, OSError) as error:
                todo = "check its log, and its user's rights (docs/redis.md)"
                yield Check("Redis", Level.FAIL, f"{target.shown}: {error}", todo)


def _print(check: Check) -> None:
    print(f"{paint(f'{check.level.value:4}', _COLOURS[check.level])}  {check.name}: {check.said}")
    if check.todo and check.level is not Level.OK:
        print(f"      → {check.todo}")
