"""The settings of the front door, as a base class of :class:`brimful.config.Settings`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ByteSize, Field
from pydantic_settings import BaseSettings

from brimful.names import Workload


class ServeSettings(BaseSettings):
    """``BRIMFUL_SERVE_*``"""

    serve_workload: Workload = Workload.INTERACTIVE
    """Of requests to the front door without X-Acs-Workload."""
    serve_keepalive_s: float = Field(5.0, gt=0)
    """Seconds without an event after which the front door writes a comment into a stream."""
    serve_data: Path | None = None
    """Where the front door keeps files and batches. Default: in the state directory, apart for each API key."""
    serve_file_max: ByteSize = Field(ByteSize(512 * 2**20), gt=0)
    """The largest file that a caller may upload, such as 200MB."""
    serve_keep_s: float = Field(2_592_000, ge=60)
    """Seconds for which the front door keeps files, and batches that have ended."""
    serve_batches: int = Field(4, ge=1)
    """Batches that one front door samples at once; others wait."""
    serve_batch_lines: int = Field(50_000, ge=1)
    """The most requests in one batch."""
