"""Enqueue many messages on a Redis broker in one round trip, as if its `enqueue` had been called for each.

This relies on the inside of Dramatiq's RedisBroker, for speed: a copy of the broker writes its commands into a
pipeline. A broker class with an `enqueue` of its own gets one call for each message instead.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any
from uuid import uuid4

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.redis_outcomes import outcomes
from outbox.dramatiq.enqueue_each import Messages, enqueue_each
from outbox.errors import Unavailable, describe
from outbox.storage.redis_client import UNAVAILABLE_ERRORS


def enqueue_on_redis(broker: Any, messages: Messages) -> list[Outcome]:
    """Enqueue the messages; return an outcome for each."""
    if getattr(type(broker), "enqueue", None) is not RedisBroker.enqueue:
        return enqueue_each(broker, messages, *UNAVAILABLE_ERRORS)
    with broker.client.pipeline(transaction=False) as pipeline:
        piped = _copy_into(pipeline, broker)
        try:
            added = [_add(broker, piped, message) for message in messages]
        except UNAVAILABLE_ERRORS as error:
            return [Unavailable(describe(error)) for _ in messages]
        results = iter(outcomes(pipeline))
    return [each if isinstance(each, Retry) else _after_enqueue(broker, each, next(results)) for each in added]


def _copy_into(pipeline: Any, broker: RedisBroker) -> Any:
    """Return a copy of the broker whose commands go into the pipeline, which loads the script if Redis lacks it."""
    piped = copy.copy(broker)
    piped.scripts = broker.scripts | {"dispatch": partial(broker.scripts["dispatch"], client=pipeline)}
    return piped


def _add(broker: RedisBroker, piped: Any, message: dramatiq.Message[Any]) -> dramatiq.Message[Any] | Retry:
    """Do what `RedisBroker.enqueue` does, up to the sending. An error in one message must not stop the others."""
    message = message.copy(options={"redis_message_id": str(uuid4())})
    try:
        broker.emit_before("enqueue", message, None)
        piped.do_enqueue(message.queue_name, message.options["redis_message_id"], message.encode())
    except UNAVAILABLE_ERRORS:
        raise  # on first use, the broker asks Redis for the size of its stack
    except Exception as error:
        return Retry(describe(error))
    return message


def _after_enqueue(broker: RedisBroker, message: dramatiq.Message[Any], outcome: Outcome) -> Outcome:
    if outcome == DELIVERED_OUTCOME:
        broker.emit_after("enqueue", message, None)
    return outcome
