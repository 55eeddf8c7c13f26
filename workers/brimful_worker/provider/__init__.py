"""The provider: one shared session, what is sent, and what an answer means."""

from brimful_worker.provider.answers.answer import Answer, Kind, Meaning, NoAnswer
from brimful_worker.provider.answers.classify import meaning
from brimful_worker.provider.jobs import GIVE_BACK
from brimful_worker.provider.session import Provider

__all__ = ["GIVE_BACK", "Answer", "Kind", "Meaning", "NoAnswer", "Provider", "meaning"]
