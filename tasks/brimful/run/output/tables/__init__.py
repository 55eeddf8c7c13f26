"""Outputs that are tables: CSV, TSV and Parquet, with the input's columns as columns of their own.

Made from the rollouts file at the end of a try. Imported by the top files of ``run`` and by ``run.output.convert``.
"""
