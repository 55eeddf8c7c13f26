"""Attempts as the sampler makes them for the front door: the caller's own bytes go out, the provider's come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from brimful.outcome import Cause
from brimful_worker.admission import Lease
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.answers.stated import stated_starts
from brimful_worker.provider.assembly import Part
from brimful_worker.provider.session import OnSent, Provider
from brimful_worker.serve.completions.reading import CallerRequest
from brimful_worker.serve.completions.stream_answer import StreamAnswer


class WholeAnswer:
    """An exchange whose answer is read to its end before the caller gets any of it."""

    begun = False

    def __init__(self, asked: CallerRequest) -> None:
        self._asked = asked
        self.last: Answer | None = None
        """The last attempt's, if it had one."""
        self._alone = True
        """No other attempt's choices belong to the complete answer."""

    async def send(self, provider: Provider, part: Part, body: bytes, lease: Lease, on_sent: OnSent) -> Classification:
        whole = part.request is self._asked.request
        answer = await provider.exchange(part, self._asked.body if whole else body, lease, on_sent)
        self.last = answer if isinstance(answer, Answer) else None
        self._alone &= whole
        classification = provider.classify(answer, part)
        self._alone &= classification.kind is not Kind.SHORT
        return classification

    def body(self) -> bytes | None:
        """The provider's answer to a request that succeeded; None if it was put together from several."""
        if self.last is None or not self._alone or self.last.body[:1] != b"{":
            return None
        return bytes(self.last.body)


class Streamed:
    """An exchange whose events are passed on as they come."""

    def __init__(self, asked: CallerRequest, forward: Callable[[bytes], None]) -> None:
        self._asked = asked
        self._forward = forward
        self.last: Answer | None = None
        """As in :class:`WholeAnswer`."""
        self.attempts = 0
        self.waited_s = 0.0
        self.headers: Mapping[str, str] = {}
        """Of the answer whose events are passed on."""
        self.error_event: bytes | None = None
        """The provider's own, which ended a stream that had begun."""
        self.begun = False
        self.done = b""
        """The event that ends a complete answer. It is not passed on: callers hang up when they have it."""

    async def send(self, provider: Provider, part: Part, body: bytes, lease: Lease, on_sent: OnSent) -> Classification:
        self.waited_s += lease.waited_s
        self.error_event = None

        def sent() -> None:
            self.attempts += 1
            on_sent()

        stream = StreamAnswer(self._asked, self._pass_on)
        answer = await provider.exchange(part, self._asked.body, lease, sent, stream.listen)
        self.last = answer if isinstance(answer, Answer) and not stream.listening else None
        classification = self._classify(provider, stream, answer, part)
        if isinstance(answer, Answer):
            classification.request_id = answer.request_id
        if stream.listening:
            classification.stated_starts = stated_starts(stream.headers, now=time.time())
        return classification

    def _classify(
        self, provider: Provider, stream: StreamAnswer, answer: Answer | TransportError, part: Part
    ) -> Classification:
        if stream.complete:
            self.done = stream.done
            return Classification(Kind.SUCCESS, completion=stream.completion(), status=200)
        if not stream.listening:
            return self._not_streamed(provider.classify(answer, part))
        if (refused := stream.refusal()) is not None:
            self.error_event = provider.conceal(refused.event)
            self.last = Answer(200, stream.headers, refused.data)
            return provider.redact(refused.classification, part)
        if isinstance(answer, TransportError):
            return provider.classify(answer, part)
        return Classification(Kind.TRANSIENT, cause=Cause.BAD_ANSWER, message=stream.fault(), status=answer.status)

    def _pass_on(self, event: bytes, headers: Mapping[str, str]) -> None:
        self.begun, self.headers = True, headers
        self._forward(event)

    def _not_streamed(self, classification: Classification) -> Classification:
        if classification.kind not in (Kind.SUCCESS, Kind.SHORT):
            return classification
        message = "the provider answered a request for a stream with a whole answer; ask without stream"
        return Classification(Kind.PERMANENT, cause=Cause.BAD_ANSWER, message=message, status=classification.status)
