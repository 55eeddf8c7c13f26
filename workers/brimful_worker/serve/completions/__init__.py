"""``POST /v1/completions`` and ``/v1/chat/completions``: read, sampled, and answered as the provider answered.

Imported by ``serve.app``.
"""
