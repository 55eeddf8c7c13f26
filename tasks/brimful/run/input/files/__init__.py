"""Input files of every kind, each read as a stream of rows: JSON lines, JSON arrays, text, CSV, Parquet and Arrow.

A row of a table becomes the bytes of the JSON object that it equals, so that whatever follows (parsing, digests,
resuming, errors by place) works as it does for JSON lines. Imported by ``run.input`` and by ``cli``.
"""
