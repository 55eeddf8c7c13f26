"""How many messages wait in a fleet's queues in RabbitMQ. It is asked by AMQP, so no management plugin is needed."""

from __future__ import annotations

from typing import NamedTuple

from brimful.names import QUEUES, of_fleet
from brimful.state.rabbitmq.reach import reached


class QueueState(NamedTuple):
    waiting: int
    """Messages that no worker has been given."""
    consumers: int


def read_states(url: str, fleet: str = "") -> dict[str, QueueState]:
    """Each of the fleet's queues by its plain name; 0 and 0 where nobody has declared it yet.

    Makes a connection for it. Raises BrokerUnreachable.
    """
    import amqp  # slow to import, and every command imports this module

    states = {}
    with reached(url) as connection:
        for queue in QUEUES:
            try:
                # A channel each: RabbitMQ closes the one on which a queue is not found.
                with connection.channel() as channel:
                    found = channel.queue_declare(of_fleet(fleet, queue), passive=True)
            except amqp.NotFound:
                states[queue] = QueueState(0, 0)
            else:
                states[queue] = QueueState(int(found.message_count), int(found.consumer_count))
    return states
