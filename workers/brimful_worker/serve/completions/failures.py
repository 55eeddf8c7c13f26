"""Error responses for requests that failed: the provider's own status and error document, or ours if it sent none."""

from __future__ import annotations

from brimful.outcome import Cause, Failure
from brimful_worker.provider import Provider
from brimful_worker.provider.answers.answer import Answer
from brimful_worker.provider.answers.classify import parse_json
from brimful_worker.provider.answers.refusal import find_error
from brimful_worker.serve.refusals import NO_RETRY, Refusal

_STATUS = {
    Cause.TIMEOUT: 504,
    Cause.LEASE_LOST: 503,
    Cause.INTERNAL: 500,
    Cause.BUDGET: 429,
}
"""Of failures without an error response of the provider's; 502 for the others."""
_PASSED_ON = ("retry-after", "retry-after-ms")


def failed(failure: Failure, last: Answer | None, provider: Provider) -> Refusal:
    """``last``: the last attempt's answer. All attempts are spent: the caller's client is asked not to retry."""
    if failure.cause is Cause.KEY_REFUSED:
        message = f"the provider refuses this server's API key ({failure.message})"
        return Refusal(502, message, "provider_key_refused", headers=NO_RETRY)
    status = _STATUS.get(failure.cause, 502)
    code = failure.code or ("insufficient_quota" if failure.cause is Cause.BUDGET else failure.cause.value)
    if last is None or failure.status != last.status or 300 <= last.status < 400:
        return Refusal(status, failure.message, code, headers=NO_RETRY)
    status = last.status if last.status >= 400 else status
    headers = {name: last.headers[name] for name in _PASSED_ON if name in last.headers}
    body = provider.conceal(bytes(last.body)) if find_error(parse_json(last)) is not None else None
    return Refusal(status, failure.message, code, headers=headers | NO_RETRY, body=body)
