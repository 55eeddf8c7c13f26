"""Expands the inputs that the user named, such as directories and patterns, to a list of files."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from brimful.errors import UsageError
from brimful.run.input.files.kinds import BY_SUFFIX, PACKED
from brimful.run.input.files.unpack import STDIN
from brimful.run.input.formats import InputFormat

_PATTERN = set("*?[")
_ABOUT = {"dataset_info.json", "state.json", "dataset_dict.json", "dataset_infos.json"}
"""What Hugging Face's datasets write beside their data."""
_OURS = (".run.json", ".run.lines", ".errors.jsonl", ".failures.jsonl", ".rollouts.jsonl", ".kept", ".report.html")
"""Files beside the output of a run."""
_NAMED = 3
_IN_DIRECTORY = {suffix: form for suffix, form in BY_SUFFIX.items() if suffix != ".md"}


def suffix_of(path: str) -> str:
    """The lower-case suffix that names the format, without ``.gz`` or ``.zst``."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def expand(inputs: Iterable[str]) -> tuple[list[str], list[str]]:
    """The files, and notes about what was left out. The order is that of the inputs; within one, that of the names.

    Of a directory, all data files in it, which must be of one kind. A pattern (``*``, ``?``, ``[…]``, ``**``) counts
    only where no file has that very name. Outputs of runs are left out. Raises UsageError.
    """
    files: list[str] = []
    notes: list[str] = []
    for given in inputs:
        if not given:  # as of a variable that is not set; as a path, it would be the current directory
            raise UsageError("INPUT: is empty; name a file, or use - to read standard input")
        path = Path(given)
        if given == STDIN or not (path.is_dir() or (_PATTERN & set(given) and not path.exists())):
            files.append(given)
        elif path.is_dir():
            files += _directory(given, notes)
        else:
            files += _pattern(given, notes)
    return files, notes


def _pattern(pattern: str, notes: list[str]) -> list[str]:
    matches = sorted(path for path in glob.glob(pattern, recursive=True) if not Path(path).is_dir())
    found = [path for path in matches if not _of_a_run(Path(path))]
    if not found:
        raise UsageError(f"{pattern}: no file matches; check the pattern (** also matches folders)")
    _note_left_out(pattern, [Path(path).name for path in matches if path not in set(found)], notes)
    return found


def _directory(name: str, notes: list[str]) -> list[str]:
    try:
        inside = sorted(path for path in Path(name).iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror or error}") from None
    entries = [path for path in inside if path.is_file() and not _of_a_run(path)]
    found = [path for path in entries if path.name not in _ABOUT and suffix_of(path.name) in _IN_DIRECTORY]
    if not found:
        raise UsageError(f"{name}: holds no data file ({_what_is_there(inside)}); name one, or a folder of them")
    kinds: dict[InputFormat, str] = {}
    for path in found:
        kinds.setdefault(_alike(_IN_DIRECTORY[suffix_of(path.name)]), path.name)
    if len(kinds) > 1:
        raise UsageError(
            f"{name}: holds files of different kinds ({', '.join(kinds.values())}); name those that you mean, "
            f"for instance '{name.rstrip('/')}/*{suffix_of(next(iter(kinds.values())))}'"
        )
    _note_left_out(name, [path.name for path in inside if path.is_file() and path not in found], notes)
    return [str(path) for path in found]


def _alike(form: InputFormat) -> InputFormat:
    return InputFormat.JSONL if form is InputFormat.JSON else form


def _what_is_there(inside: list[Path]) -> str:
    folders = [f"{path.name}/" for path in inside if path.is_dir()]
    others = [path.name for path in inside if path.is_file()]
    return _named(folders + others) or "it is empty"


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _note_left_out(name: str, left_out: list[str], notes: list[str]) -> None:
    if left_out:
        notes.append(f"{name}: left out {_named(left_out)}")


def _of_a_run(path: Path) -> bool:
    """Whether it is the output of a run, or a file beside one."""
    outputs = [path.name, *(path.name.removesuffix(end) for end in _OURS if path.name.endswith(end))]
    return any(path.with_name(f"{output}.run.json").exists() for output in outputs)
