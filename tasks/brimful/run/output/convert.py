"""Makes OUT from the rollouts file when the command ends: a function for each format and each kind of table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.run.output.jsonl import scan
from brimful.run.output.openai_batch import write_openai_batch, write_openai_errors
from brimful.run.output.order import is_ordered, ordered, write_ordered
from brimful.run.output.paths import OutputFormat, RunPaths
from brimful.run.output.tables.csv_file import write_csv
from brimful.run.output.tables.layout import Column, layout
from brimful.run.output.tables.parquet_file import check_parquet, write_parquet


def _openai_batch(paths: RunPaths) -> None:
    if paths.rollouts.exists():
        write_openai_batch(ordered(paths.rollouts), paths.output)
    write_openai_errors(paths.failures, paths.errors)


FORMATS: Mapping[OutputFormat, Callable[[RunPaths], None]] = {OutputFormat.OPENAI_BATCH: _openai_batch}
"""All but the rollouts, which need no conversion."""
TABLE_WRITERS: Mapping[str, Callable[[Iterable[dict[str, Any]], list[Column], Path], None]] = {
    ".csv": write_csv,
    ".tsv": write_csv,
    ".parquet": write_parquet,
}
TABLE_CHECKS: Mapping[str, Callable[[], None]] = {".parquet": check_parquet}
"""Each raises UsageError where a library that the table needs is missing."""


def check_format(paths: RunPaths) -> None:
    """Raises UsageError if OUT cannot be made: the format is not for tables, or a library is missing."""
    if paths.table and paths.form is not OutputFormat.ROLLOUTS:
        raise UsageError(
            f"--format {paths.form.value} is not a table; name an output that does not end in {paths.suffix}"
        )
    if (check := TABLE_CHECKS.get(paths.suffix)) is not None:
        check()


def convert(paths: RunPaths, *, input_order: bool) -> None:
    """Replace OUT, and the errors file if the format has its own, as whole files. Raises FleetError."""
    if (write := FORMATS.get(paths.form)) is not None:
        write(paths)
    elif not paths.rollouts.exists():
        return
    elif paths.table:
        columns = layout(record for record, _ in scan(paths.rollouts))
        TABLE_WRITERS[paths.suffix](ordered(paths.rollouts), columns, paths.output)
    elif input_order and not is_ordered(paths.rollouts):
        write_ordered(paths.rollouts)
