"""The mock gateway: a faithful local imitation of the provider, for tests, rehearsals and benchmarks.

It keeps the provider's limits and refuses as the provider does, is ill in every way a gateway can be ill (faults), and
writes down what it saw (the ledger), so that a fleet can be judged by the other side of the wire.
"""

from brimful_worker.gateway.app import Gateway
from brimful_worker.gateway.faults.faults import FaultError, Rule, parse_faults
from brimful_worker.gateway.options import GatewayOptions, OptionError
from brimful_worker.gateway.request_log import Arrival, RequestLog
from brimful_worker.gateway.text import prompt_digest, sample_text
from brimful_worker.gateway.wire import FAULTS, Fault, Wire

__all__ = [
    "FAULTS",
    "Arrival",
    "Fault",
    "FaultError",
    "Gateway",
    "GatewayOptions",
    "OptionError",
    "RequestLog",
    "Rule",
    "Wire",
    "parse_faults",
    "prompt_digest",
    "sample_text",
]
