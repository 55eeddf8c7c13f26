"""Makes OUT from the rollouts file at the end of a try. Every format has a branch here."""

from __future__ import annotations

from brimful.run.output.jsonl import scan
from brimful.run.output.openai_batch import write_openai_batch, write_openai_errors
from brimful.run.output.order import is_ordered, ordered, write_ordered
from brimful.run.output.paths import OutputFormat, RunPaths
from brimful.run.output.tables.csv_file import write_csv
from brimful.run.output.tables.layout import layout
from brimful.run.output.tables.parquet_file import write_parquet


def convert(paths: RunPaths, *, input_order: bool) -> None:
    """Replace OUT, and with ``openai-batch`` its error file too, as whole files. Raises FleetError."""
    if paths.form is OutputFormat.OPENAI_BATCH:
        if paths.rollouts.exists():
            write_openai_batch(ordered(paths.rollouts), paths.output)
        write_openai_errors(paths.failures, paths.errors)
    elif paths.table:
        if paths.rollouts.exists():
            columns = layout(record for record, _ in scan(paths.rollouts))
            if paths.parquet:
                write_parquet(ordered(paths.rollouts), columns, paths.output)
            else:
                write_csv(ordered(paths.rollouts), columns, paths.output)
    elif input_order and paths.rollouts.exists() and not is_ordered(paths.rollouts):
        write_ordered(paths.rollouts)
