"""Checks of RabbitMQ, where it is the broker: it answers, and no other program reads the fleet's queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from brimful.addresses.broker_address import parse_broker_url
from brimful.doctor import Check, Level
from brimful.names import of_fleet
from brimful.state.rabbitmq.queues import read_states
from brimful.state.rabbitmq.reach import check_broker
from brimful.words.counted import counted


def broker_checks(url: str) -> Iterator[Check]:
    """RabbitMQ answers. Raises BrokerUnreachable, whose text has the remedy after its last semicolon."""
    shown = parse_broker_url(url).shown
    yield Check("broker", Level.OK, f"{check_broker(url)} at {shown}")


def reader_checks(url: str, fleet: str, workers: Mapping[str, list[str]]) -> Iterator[Check]:
    """No consumers but workers. ``workers``: node → queues of those that answer. Raises BrokerUnreachable."""
    read = [queue for queues in workers.values() for queue in queues]
    for name, state in read_states(url, fleet).items():
        queue = of_fleet(fleet, name)
        if (others := state.consumers - read.count(queue)) > 0:
            yield Check(
                "broker",
                Level.WARN,
                f"beside the workers that answer, {counted(others, 'consumer')} of the queue {queue!r}",
                "if they are another program's, give the fleet a virtual host of its own (BRIMFUL_BROKER_URL) or a "
                "name (BRIMFUL_FLEET): each takes messages of the other",
            )
