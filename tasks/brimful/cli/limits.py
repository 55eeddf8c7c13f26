"""``brimful limits show`` and ``brimful limits set``: the limits in force, for the whole fleet, at once."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated

import redis
import typer

from brimful.cli.style import say
from brimful.config import Settings
from brimful.errors import UsageError
from brimful.limits import SETTABLE, described, learnt_lines, out_of_range, set_by_hand
from brimful.state.probes import connect, unreachable
from brimful.state.status import Status, read_status, set_limits
from brimful.state.target import find_redis, find_tag
from brimful.words.setting_faults import option

limits = typer.Typer(
    help="Show or change the limits of the whole fleet while it runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_Tag = Annotated[
    str | None,
    typer.Option(
        help="The API key, where several share a Redis: its tag or its beginning. Default: the only one, or your own."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_UNCHANGED = "Default: unchanged."
_Former = typer.Option(hidden=True)
_FORMER = {"age": "starvation_s", "breaker": "circuit_breaker", "ramp": "slow_start_s"}
"""Options that have been renamed, and the limits that they set."""


@limits.command("show")
def limits_show(tag: _Tag = None, as_json: _Json = False) -> None:
    """Show the limits that all workers obey, and which of them were set by hand."""
    target = find_redis(settings := Settings.load())
    with connect(target.url) as client:
        try:
            status = read_status(client, find_tag(target, client, settings, tag))
        except (redis.RedisError, OSError) as error:
            raise unreachable(target.url, error) from None
    _show(status, as_json)


@limits.command("set")
def limits_set(
    slots: Annotated[
        str | None,
        typer.Option(help=f"Requests active at the same time; auto = the workers learn how many. {_UNCHANGED}"),
    ] = None,
    starts: Annotated[int | None, typer.Option(help=f"Starts in any window; 0 = no such limit. {_UNCHANGED}")] = None,
    window_s: Annotated[
        float | None, typer.Option("--window", help=f"Length of the window in seconds. {_UNCHANGED}")
    ] = None,
    guard_s: Annotated[
        float | None,
        typer.Option("--guard", help="Seconds by which the window is widened. Default: 0.2 s + 1 % of the window."),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help=f"Tokens in any window; 0 = no such limit. {_UNCHANGED}")] = None,
    budget: Annotated[int | None, typer.Option(help=f"Tokens in total; 0 = no such limit. {_UNCHANGED}")] = None,
    reserve_slots: Annotated[
        int | None, typer.Option(help=f"Slots that batch leaves to interactive. {_UNCHANGED}")
    ] = None,
    reserve_starts: Annotated[
        int | None, typer.Option(help=f"Starts that batch leaves to interactive. {_UNCHANGED}")
    ] = None,
    starvation_s: Annotated[
        float | None,
        typer.Option(
            "--starvation",
            help=f"Seconds after which a waiting batch request takes turns with interactive ones. {_UNCHANGED}",
        ),
    ] = None,
    lease_s: Annotated[
        float | None,
        typer.Option("--lease", help=f"Seconds of silence after which a process loses its slots. {_UNCHANGED}"),
    ] = None,
    circuit_breaker: Annotated[
        int | None,
        typer.Option(help=f"Consecutive failures that open the circuit breaker; 0 = never. {_UNCHANGED}"),
    ] = None,
    slow_start_s: Annotated[
        float | None,
        typer.Option("--slow-start", help=f"Seconds over which the slots are filled again after a pause. {_UNCHANGED}"),
    ] = None,
    age: Annotated[float | None, _Former] = None,
    breaker: Annotated[int | None, _Former] = None,
    ramp: Annotated[float | None, _Former] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First return to the defaults, which are those that the workers brought.")
    ] = False,
    tag: _Tag = None,
    as_json: _Json = False,
) -> None:
    """Change limits for the whole fleet while it runs; no worker is restarted."""
    options = dict(locals())  # named as the limits
    options |= _parse_slots(slots)
    for former, name in _FORMER.items():
        if options[former] is not None:
            say(f"--{former} is now called {option(name)}")
            options[name] = options[former] if options[name] is None else options[name]
    given: dict[str, float] = {name: options[name] for name in SETTABLE if options.get(name) is not None}
    for name, value in given.items():
        if (fault := out_of_range(name, value)) is not None:
            raise UsageError(f"{option(name)} {value:g}: {fault}")
    if not given and not reset:
        raise UsageError("nothing to set: for instance `brimful limits set --slots 8 --starts 300`, or --reset")
    target = find_redis(settings := Settings.load())
    with connect(target.url) as client:
        try:
            which = find_tag(target, client, settings, tag)
            before = read_status(client, which)
            if "slots" in given and before.limits.get("slots_auto"):
                given["slots_auto"] = 0
            _check_reserves({**(before.brought if reset else before.limits), **given}, given)
            set_limits(client, which, **{**(dict.fromkeys(SETTABLE) if reset else {}), **given})
            status = read_status(client, which)
        except (redis.RedisError, OSError) as error:
            raise unreachable(target.url, error) from None
    for warning in warnings(status, given):
        say(warning)
    _show(status, as_json)


def _parse_slots(text: str | None) -> dict[str, int | None]:
    """The limits that ``--slots`` sets. Raises UsageError."""
    if text is None:
        return {"slots": None}
    if text.strip().lower() == "auto":
        return {"slots": None, "slots_auto": 1}
    try:
        return {"slots": int(text)}
    except ValueError:
        raise UsageError(f"--slots {text}: must be a whole number, or auto") from None


def _check_reserves(limits: Mapping[str, float], given: Container[str]) -> None:
    """Raises UsageError if a reserve leaves nothing to batch, naming the option that was given."""
    for name in ("slots", "starts"):
        most, reserve = limits.get(name) or 0, limits.get(f"reserve_{name}") or 0
        if most and reserve >= most:
            if name in given and f"reserve_{name}" not in given:
                raise UsageError(
                    f"--{name} {most:g}: the reserve of {reserve:g} leaves none to batch; "
                    f"it must be below, lower it with --reserve-{name}"
                )
            raise UsageError(
                f"--reserve-{name} {reserve:g}: leaves none to batch of the {most:g} {name}; it must be below {most:g}"
            )


def warnings(status: Status, given: Iterable[str]) -> Iterator[str]:
    """Warnings for limits just set that allow more than those the workers brought, which the provider promises."""
    for name in given:
        now, brought = status.limits.get(name), status.brought.get(name)
        if now is None or not brought:
            continue
        shorter = name == "window_s" and now < brought
        if shorter or (name in ("slots", "starts", "tokens") and (now > brought or now == 0)):
            limit = f"{now:g}" if now else "no limit"
            yield (
                f"warning: {name} = {limit} allows more than the {brought:g} that the workers brought (from the "
                "provider's profile or BRIMFUL_* settings); the provider may answer 429 above its own limit"
            )


def _show(status: Status, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"tag": status.tag, "limits": status.limits, "overridden": list(status.overridden)}))
        return
    for line in learnt_lines(status.learnt, status.limits):
        say(line)
    print(f"key {status.tag}{'' if status.brought else ': no worker has brought limits yet'}")
    by_hand = set_by_hand(status.limits, status.overridden)
    for name, shown in described(status.limits).items():
        print(f"{name:16}{shown:>11}{'   set by hand' if name in by_hand else ''}")
