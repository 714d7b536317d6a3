"""Enqueueing many messages at once: in one round trip where the broker can, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.errors import BrokerConnectionError

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.dramatiq.rabbitmq import Sender, is_rabbitmq, sender_for
from outbox.errors import Unavailable, describe

Messages = Sequence[dramatiq.Message[Any]]


def enqueue_all(broker: dramatiq.Broker, messages: Messages) -> list[Outcome]:
    """Enqueue them in their order; an outcome for each."""
    if hasattr(broker, "client") and hasattr(broker, "namespace"):
        from outbox.dramatiq.pipeline import enqueue_on_redis  # redis is an extra

        return enqueue_on_redis(broker, messages)
    sender = sender_for(broker) if is_rabbitmq(broker) else broker
    return enqueue_each(sender, messages, BrokerConnectionError)


def enqueue_each(broker: dramatiq.Broker | Sender, messages: Messages, *lost: type[Exception]) -> list[Outcome]:
    """One after the other. Once the connection is lost the rest are not tried: each would wait as long as the first."""
    outcomes: list[Outcome] = []
    for message in messages:
        try:
            broker.enqueue(message)
        except lost as error:
            return outcomes + [Unavailable(describe(error)) for _ in messages[len(outcomes) :]]
        except Exception as error:  # what is wrong with one message must not stop the others
            outcomes.append(Retry(describe(error)))
        else:
            outcomes.append(DELIVERED_OUTCOME)
    return outcomes
