"""The mock gateway: a local imitation of the provider, for tests, rehearsals and benchmarks.

It enforces the provider's limits, injects faults on request, and logs every request it receives, so that a fleet's
behaviour can be measured on the provider's side. Imported by ``local``.
"""

from brimful_worker.gateway.app import Gateway
from brimful_worker.gateway.faults.fault import FAULTS, Fault, FaultContext
from brimful_worker.gateway.faults.rules import Rule
from brimful_worker.gateway.model.text import prompt_digest, sample_text
from brimful_worker.gateway.options import GatewayOptions

__all__ = ["FAULTS", "Fault", "FaultContext", "Gateway", "GatewayOptions", "Rule", "prompt_digest", "sample_text"]
