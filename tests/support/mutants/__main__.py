"""``PYTHONPATH=tests python -m support.mutants``: what ``make mutants`` runs.

Ends with 1 where fewer than ``--least`` percent of the faults are caught.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from support.mutants.fault import Fault
from support.mutants.table import ROOT, equivalents, faults_in, modules, sample, slow, tests_of
from support.mutants.trial import Result, try_all

_UNCHANGED = ["breaker", "tokens.lua", "refusal"]
"""Tried where a change touches no module of modules.toml."""


def main() -> int:
    options = _options()
    faults, base = _chosen(options)
    known = equivalents()
    same = [fault for fault in faults if (fault.path, fault.before, fault.after) in known]
    tried = [fault for fault in faults if fault not in same]
    for path in dict.fromkeys(fault.path for fault in faults):
        there = {(fault.path, fault.before, fault.after) for fault in faults_in(path)}
        for key in known:
            if key[0] == path and key not in there:
                print(f"equivalent.toml: no fault any more, since the line has changed: {path}: {key[1]}")
    if options.list:
        for fault in faults:
            print(f"{'= ' if fault in same else '  '}{_text(fault)}")
        return 0
    print(f"{base}: {len(tried)} faults in {len({fault.path for fault in tried})} modules", flush=True)
    if not tried:
        return 0
    report = options.work / "report.json"
    results = try_all(ROOT, options.work, [(fault, _tests(fault.path, options.without)) for fault in tried], _note)
    report.write_text(json.dumps([_record(result) for result in results], indent=1), "utf-8")
    print()
    print(_table(results, same))
    survivors = [result for result in results if not result.caught]
    share = 100 * (len(results) - len(survivors)) / len(results)
    print(f"{share:.0f} % of {len(results)} were caught. All runs: {report}")
    if share < options.least:
        print(f"fewer than {options.least} %: test the survivors, or enter them in equivalent.toml with the reason")
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="support.mutants", description="Faults that the tests should notice.")
    parser.add_argument("--module", default="", help="names, paths or groups of modules.toml, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=25, help="faults a module; with --changed, in all")
    parser.add_argument("--changed", action="store_true", help="modules of this branch, or of the last commit")
    parser.add_argument("--again", action="store_true", help="the survivors of the last run")
    parser.add_argument("--least", type=float, default=0, help="percent that must be caught")
    parser.add_argument("--without", default="", help="leave out test files with this in their name")
    parser.add_argument(
        "--work",
        type=lambda path: Path(path).absolute(),
        default=ROOT / ".mutants",
        help="folder of the copies and the report",
    )
    parser.add_argument("--list", action="store_true", help="print the faults and try none")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> tuple[list[Fault], str]:
    if options.again:
        report = json.loads((options.work / "report.json").read_text("utf-8"))
        left = {(r["path"], r["before"], r["after"], r["occurrence"]) for r in report if not r["caught"]}
        every = [fault for path in sorted({key[0] for key in left}) for fault in faults_in(path)]
        return [f for f in every if (f.path, f.before, f.after, f.occurrence) in left], "survivors of the last run"
    if options.changed:
        paths = [path for path in _changed() if tests_of(path) and not slow(path)] or modules(_UNCHANGED)
        faults = [fault for path in paths for fault in faults_in(path)]
        faults = sorted(faults, key=lambda fault: fault.rank(options.seed))[: options.count]
        return sorted(faults, key=lambda fault: (fault.path, fault.edit)), "modules of this change"
    paths = modules([part for part in options.module.split(",") if part])
    if not paths:
        raise SystemExit(f"no module in modules.toml is called {options.module}")
    return [fault for path in paths for fault in sample(path, options.seed, options.count)], f"seed {options.seed}"


def _changed() -> list[str]:
    """Files that differ from where this branch left main; on main itself, those of the last commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    base = git("merge-base", "HEAD", "main")
    if not base or (base == git("rev-parse", "HEAD") and not git("status", "--porcelain", "--untracked-files=no")):
        base = git("rev-parse", "HEAD~1")
    return sorted(git("diff", "--name-only", base).splitlines()) if base else []


def _tests(path: str, without: str) -> tuple[str, ...]:
    """``without``: parts of names, separated by commas."""
    parts = [part for part in without.split(",") if part]
    return tuple(name for name in tests_of(path) if not any(part in name for part in parts))


def _note(result: Result) -> None:
    print("." if result.caught else f"\nsurvived  {_text(result.fault)}", end="" if result.caught else "\n", flush=True)


def _text(fault: Fault) -> str:
    after = "(nothing)" if fault.kind == "line dropped" and not fault.after else fault.after
    return f"{fault.place}  {fault.kind}: {fault.before}  →  {after}"


def _record(result: Result) -> dict[str, object]:
    fault = result.fault
    return {
        "path": fault.path, "line": fault.line, "kind": fault.kind, "before": fault.before, "after": fault.after,
        "occurrence": fault.occurrence, "caught": result.caught, "outcome": result.outcome, "by": result.by,
        "seconds": round(result.seconds, 1),
    }  # fmt: skip


def _table(results: list[Result], same: list[Fault]) -> str:
    lines = ["| module | tried | caught | % | no difference |", "| --- | ---: | ---: | ---: | ---: |"]
    for path in dict.fromkeys(result.fault.path for result in results):
        mine = [result for result in results if result.fault.path == path]
        caught = sum(result.caught for result in mine)
        left_out = sum(fault.path == path for fault in same)
        name = "/".join(Path(path).parts[-2:])
        lines.append(f"| {name} | {len(mine)} | {caught} | {100 * caught // len(mine)} | {left_out or ''} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
