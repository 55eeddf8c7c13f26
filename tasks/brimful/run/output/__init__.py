"""Output files of a run: rollouts, failures, the files to resume from, and other formats.

Imported by the top files of ``run``, by ``run.input``, ``run.display`` and ``run.report``. A run appends to the
*rollouts file* (one JSON line per rollout, as they come) and the *errors file*, and resumes from them. Where the user
asked for another order or format, OUT is made from them at the end. To add an output format: a member of
``paths.OutputFormat`` or a suffix in ``paths.TABLES``, a writer (like ``openai_batch``, or for a table in ``tables``),
and its entry in ``convert``.
"""
