"""What is known of a batch, and OpenAI's form of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from brimful.names import Mode
from brimful_worker.serve.records import Owned, Owner

ENDPOINTS = {"/v1/completions": Mode.COMPLETION, "/v1/chat/completions": Mode.CHAT}

Ending = Literal["completed", "failed", "expired", "cancelled"]


class Fault(BaseModel):
    """What is wrong with a batch, or with a line of its file."""

    code: str
    message: str
    line: int | None = None
    """From 1."""
    param: str | None = None


class Batch(Owned):
    """The record of one batch, written by the front door that holds its lock. Times are Unix times."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created: float
    expires_at: int
    metadata: dict[str, str] | None = None
    request_digest: str = ""
    """Of the request that created it under an ``Idempotency-Key``."""
    weight: float = 1.0
    """The caller's, for the share of its run beside others."""
    hold: int = 0
    """Tokens that its requests may use, as estimated."""
    held: bool = False
    """So many of its caller's budget are held back for it."""
    output_keep_s: float
    """Seconds for which its output files are kept."""

    status: Literal["validating", "in_progress", "finalizing"] | Ending = "validating"
    ending: Ending | None = None
    """What it will be after ``finalizing``."""
    in_progress_at: int | None = None
    cancelling_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    errors: list[Fault] = Field(default_factory=list)
    model: str | None = None
    """Of all its requests, if that is one."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    """Of the requests in the output file."""
    output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.caller, self.caller_id)

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def over(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")

    def end(self, ending: Ending, now: float) -> None:
        """Its status, and the time of it."""
        self.status = ending
        setattr(self, f"{ending}_at", int(now))

    def document(self) -> dict[str, Any]:
        """OpenAI's Batch object."""
        times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        cancelling = self.cancelling_at is not None and not self.over and self.ending in (None, "cancelled")
        errors = {"object": "list", "data": [fault.model_dump() for fault in self.errors]} if self.errors else None
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": "cancelling" if cancelling else self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(self.created),
            "expires_at": self.expires_at,
            **{f"{name}_at": getattr(self, f"{name}_at") for name in times},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": self._usage() if self.over and self.output_file_id else None,
            "metadata": self.metadata,
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.tokens,
        }
