"""Enqueue many messages, and return an outcome for each. `ActorDestination` delivers events in this way.

On Redis, all messages are sent in one round trip. On other brokers they are sent one after the other.
"""

from __future__ import annotations

import dramatiq
from dramatiq.errors import BrokerConnectionError

from outbox.destinations.outcome import Outcome
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.enqueue_each import Messages, enqueue_each
from outbox.dramatiq.rabbitmq import is_rabbitmq, sender_for


def enqueue_all(broker: dramatiq.Broker, messages: Messages) -> list[Outcome]:
    """Enqueue the messages in their order; return an outcome for each."""
    if is_redis(broker):
        from outbox.dramatiq.redis_pipeline import enqueue_on_redis  # redis is an extra

        return enqueue_on_redis(broker, messages)
    sender = sender_for(broker) if is_rabbitmq(broker) else broker
    return enqueue_each(sender, messages, BrokerConnectionError)
