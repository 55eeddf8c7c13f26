"""OUT made of the ledger at the end of a try: another order, OpenAI's Batch files, or Parquet."""

from __future__ import annotations

from brimful.run.output.openai_batch import write_openai_batch, write_openai_errors
from brimful.run.output.order import is_ordered, ordered, write_ordered
from brimful.run.output.paths import OutputFormat, RunPaths


def convert(paths: RunPaths, *, input_order: bool) -> None:
    """Whole files, put in place atomically; the ledger stays. Raises FleetError when they cannot be written."""
    if paths.form is OutputFormat.OPENAI_BATCH:
        if paths.ledger.exists():
            write_openai_batch(ordered(paths.ledger), paths.output)
        write_openai_errors(paths.error_ledger, paths.errors)
    elif paths.parquet:
        if paths.ledger.exists():
            from brimful.run.output.parquet import write_parquet

            write_parquet(ordered(paths.ledger), paths.output)
    elif input_order and paths.ledger.exists() and not is_ordered(paths.ledger):
        write_ordered(paths.ledger)
