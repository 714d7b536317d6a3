"""Enqueue many messages, and return an outcome for each: this is how jobs, and events for actors, are delivered.

On Redis, all messages are sent in one round trip. On other brokers they are sent one after the other.
"""

from __future__ import annotations

from functools import partial

import dramatiq
from dramatiq.errors import BrokerConnectionError

from outbox.destinations.outcome import Outcome
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.enqueue_each import Messages, enqueue_each
from outbox.dramatiq.enqueue_now import enqueue_now
from outbox.dramatiq.rabbitmq import is_rabbitmq, sender_for


def enqueue_all(broker: dramatiq.Broker, messages: Messages, *, are_stored: bool = False) -> list[Outcome]:
    """Enqueue the messages in their order; return an outcome for each.

    This never stores a message, even inside a transaction on a broker that `outbox.transactional` has changed.
    `are_stored`: the messages are jobs. The middleware's `before_enqueue` has run when they were stored.
    """
    if is_redis(broker):
        from outbox.dramatiq.redis_pipeline import enqueue_on_redis  # redis is an extra

        return enqueue_on_redis(broker, messages, are_stored=are_stored)
    send = sender_for(broker).enqueue if is_rabbitmq(broker) else partial(enqueue_now, broker)
    return enqueue_each(partial(send, is_stored=are_stored), messages, BrokerConnectionError)
