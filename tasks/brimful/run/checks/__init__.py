"""Checks of sampled texts in the submitter: a JSON Schema or pydantic model, and a user's own hook.

Imported by the top files of ``run``. A rollout is *accepted* and written, or *rejected* and sampled again, or the hook
failed on it. ``checker`` decides about one rollout, ``judge`` about what the driver delivers.
"""
