"""RabbitMQ where it is the broker: whether it can be used, and how many messages wait. Belongs to ``state``."""
