"""Imported by every Python process that tests start: it finds no metrics of OpenTelemetry, as without brimful[otel].

redis-py would import them for metrics of its own, which nobody here asks for; that takes each process 0.15 s of CPU.
"""

import sys

sys.modules["opentelemetry.sdk.metrics"] = None  # type: ignore[assignment]  # an import of it fails
