"""Makes OUT from the rollouts file at the end of a try. A module of its own: the only one that knows every format."""

from __future__ import annotations

from brimful.run.output.openai_batch import write_openai_batch, write_openai_errors
from brimful.run.output.order import is_ordered, ordered, write_ordered
from brimful.run.output.paths import OutputFormat, RunPaths


def convert(paths: RunPaths, *, input_order: bool) -> None:
    """Replace OUT, and with ``openai-batch`` its error file too, as whole files. Raises FleetError."""
    if paths.form is OutputFormat.OPENAI_BATCH:
        if paths.rollouts.exists():
            write_openai_batch(ordered(paths.rollouts), paths.output)
        write_openai_errors(paths.failures, paths.errors)
    elif paths.parquet:
        if paths.rollouts.exists():
            from brimful.run.output.parquet import write_parquet

            write_parquet(ordered(paths.rollouts), paths.output)
    elif input_order and paths.rollouts.exists() and not is_ordered(paths.rollouts):
        write_ordered(paths.rollouts)
