"""HTTP to the provider: one session a process, what it sends, and the classification of what it answers.

Imported by ``sampling`` and ``worker``.
"""

from brimful_worker.provider.jobs import GIVE_BACK
from brimful_worker.provider.session import Provider

__all__ = ["GIVE_BACK", "Provider"]
