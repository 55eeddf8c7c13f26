"""The provider: one shared session, what is sent, and what an answer means."""

from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.answers.classify import classify_answer
from brimful_worker.provider.jobs import GIVE_BACK
from brimful_worker.provider.session import Provider

__all__ = ["GIVE_BACK", "Answer", "Classification", "Kind", "Provider", "TransportError", "classify_answer"]
