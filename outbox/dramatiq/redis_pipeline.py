"""Enqueue many messages on a Redis broker in one round trip, as if its `enqueue` had been called for each.

For speed, this relies on internals of Dramatiq's RedisBroker: a copy of the broker writes its commands into a Redis
pipeline. If the broker's class overrides `enqueue`, that method is called for each message instead.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.redis_outcomes import execute_pipeline
from outbox.dramatiq.enqueue_each import Messages, enqueue_each
from outbox.dramatiq.enqueue_now import enqueue_now
from outbox.errors import Unavailable, describe
from outbox.storage.ids import uuid7
from outbox.storage.redis_client import UNAVAILABLE_ERRORS


def enqueue_on_redis(broker: Any, messages: Messages, *, are_stored: bool = False) -> list[Outcome]:
    """Enqueue the messages; return an outcome for each. `are_stored`: as in `enqueue.enqueue_all`."""
    if getattr(type(broker), "enqueue", None) is not RedisBroker.enqueue:
        return enqueue_each(partial(enqueue_now, broker, is_stored=are_stored), messages, *UNAVAILABLE_ERRORS)
    with broker.client.pipeline(transaction=False) as pipeline:
        pipelined_broker = _copy_with_pipeline(broker, pipeline)
        try:
            added = [_add_to_pipeline(broker, pipelined_broker, message, are_stored=are_stored) for message in messages]
        except UNAVAILABLE_ERRORS as error:
            return [Unavailable(describe(error)) for _ in messages]
        results = iter(execute_pipeline(pipeline))
    return [each if isinstance(each, Retry) else _after_enqueue(broker, each, next(results)) for each in added]


def _copy_with_pipeline(broker: RedisBroker, pipeline: Any) -> Any:
    """Return a copy of the broker that writes its commands into the pipeline.

    The pipeline loads the broker's Lua script if Redis does not have it.
    """
    copied = copy.copy(broker)
    copied.scripts = broker.scripts | {"dispatch": partial(broker.scripts["dispatch"], client=pipeline)}
    return copied


def _add_to_pipeline(
    broker: RedisBroker, pipelined_broker: Any, message: dramatiq.Message[Any], *, are_stored: bool
) -> dramatiq.Message[Any] | Retry:
    """Do what `RedisBroker.enqueue` does, except for the sending. Return the message, or Retry after an error.

    An error in one message must not stop the others.
    """
    # Dramatiq draws this id from the operating system's random numbers, which takes much longer than this.
    id = str(uuid7())
    if are_stored:
        message.options["redis_message_id"] = id  # it was read from its row for this call alone
    else:
        message = message.copy(options={"redis_message_id": id})
    try:
        if not are_stored:
            broker.emit_before("enqueue", message, None)
        pipelined_broker.do_enqueue(message.queue_name, id, message.encode())
    except UNAVAILABLE_ERRORS:
        raise  # on its first use, the broker reads a limit from Redis, and Redis may be down
    except Exception as error:
        return Retry(describe(error))
    return message


def _after_enqueue(broker: RedisBroker, message: dramatiq.Message[Any], outcome: Outcome) -> Outcome:
    """Tell the broker's middleware if the message was enqueued; return the outcome."""
    if outcome == DELIVERED_OUTCOME:
        broker.emit_after("enqueue", message, None)
    return outcome
