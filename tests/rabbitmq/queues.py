"""What is in a queue of RabbitMQ, and who consumes it."""

import pika
import pika.exceptions

from tests.rabbitmq.server import RabbitmqServer

HOUR = 3_600  # so seldom that a sweep explains nothing


def consumers_and_messages(server: RabbitmqServer, queue: str) -> tuple[int, int]:
    """Return how many consume the queue and how many messages wait in it; none of either if there is no such queue."""
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        try:
            found = connection.channel().queue_declare(queue, passive=True).method
        except pika.exceptions.ChannelClosedByBroker:
            return 0, 0
        return found.consumer_count, found.message_count
