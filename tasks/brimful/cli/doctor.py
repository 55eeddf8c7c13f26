"""``brimful doctor``: key, URL, Redis, clock, limits and workers, each with what to do."""

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
from brimful.doctor import (
    Check,
    Level,
    failed,
    fleet_checks,
    limit_checks,
    machine_checks,
    provider_checks,
    server_checks,
    variable_checks,
)
from brimful.errors import ExitCode, RedisUnreachable, SettingError, UsageError
from brimful.state.probes import connect
from brimful.state.target import find_redis

_COLOURS = {Level.OK: "green", Level.NOTE: "blue", Level.WARN: "yellow", Level.FAIL: "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Look at all that a fleet needs and say what to do about what is amiss. Exit 2 if something will not work.

    It asks the provider for its list of models once, and samples nothing: no tokens are spent.
    """
    checks = []
    for check in _checks():
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print(json.dumps({"ok": not failed(checks), "checks": [asdict(check) for check in checks]}))
    raise typer.Exit(ExitCode.USAGE if failed(checks) else ExitCode.OK)


def _checks() -> Iterator[Check]:
    yield from variable_checks()
    try:
        settings = Settings.load()
    except SettingError as error:
        yield Check("settings", Level.FAIL, str(error), "correct it; the rest is looked at then")
        return
    try:
        profile = settings.profile
    except SettingError as error:
        yield Check("provider", Level.FAIL, str(error), "correct BRIMFUL_PROVIDER; what needs no provider follows")
        profile = None
    yield from machine_checks(profile)
    place, missing = None, ""
    try:
        place = find_redis(settings)
    except UsageError as error:
        missing = str(error)
    if profile is not None:
        yield from provider_checks(settings, client_only=place is not None)
    if place is None:
        yield Check(
            "Redis",
            Level.NOTE,
            missing,
            "nothing, if you use `brimful run` or `up` alone: they bring an embedded Valkey",
        )
        return
    try:
        with connect(place.url) as client:
            yield from server_checks(place, client)
            if profile is not None:
                yield from limit_checks(place, client, settings)
            yield from fleet_checks(place, client, settings)
    except RedisUnreachable as error:
        yield Check("Redis", Level.FAIL, str(error), "start it, or correct BRIMFUL_REDIS_URL")
    except (redis.RedisError, OperationalError, OSError) as error:
        yield Check("Redis", Level.FAIL, f"{place.shown}: {error}", "look at its log, and its user's rights (ACL)")


def _print(check: Check) -> None:
    print(f"{paint(f'{check.level.value:4}', _COLOURS[check.level])}  {check.name}: {check.said}")
    if check.todo and check.level is not Level.OK:
        print(f"      → {check.todo}")
