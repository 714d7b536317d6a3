"""Many messages to a Redis broker in one round trip, as if its `enqueue` had been called for each."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any
from uuid import uuid4

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.dramatiq.enqueue import Messages, enqueue_each
from outbox.errors import Unavailable, describe
from outbox.storage.redis_client import OUT_OF_ORDER, outcomes


def enqueue_on_redis(broker: Any, messages: Messages) -> list[Outcome]:
    """What became of each message. A broker with an `enqueue` of its own means something by it, and is left to it."""
    if getattr(type(broker), "enqueue", None) is not RedisBroker.enqueue:
        return enqueue_each(broker, messages, *OUT_OF_ORDER)
    with broker.client.pipeline(transaction=False) as pipeline:
        piped = _into(pipeline, broker)
        try:
            added = [_add(broker, piped, message) for message in messages]
        except OUT_OF_ORDER as error:
            return [Unavailable(describe(error)) for _ in messages]
        heard = iter(outcomes(pipeline))
    return [each if isinstance(each, Retry) else _ended(broker, each, next(heard)) for each in added]


def _into(pipeline: Any, broker: RedisBroker) -> Any:
    """The broker as it is, but that its commands go into the pipeline, which loads the script if Redis lacks it."""
    piped = copy.copy(broker)
    piped.scripts = broker.scripts | {"dispatch": partial(broker.scripts["dispatch"], client=pipeline)}
    return piped


def _add(broker: RedisBroker, piped: Any, message: dramatiq.Message[Any]) -> dramatiq.Message[Any] | Retry:
    """`RedisBroker.enqueue` up to the sending; what is wrong with one message must not stop the others."""
    message = message.copy(options={"redis_message_id": str(uuid4())})
    try:
        broker.emit_before("enqueue", message, None)
        piped.do_enqueue(message.queue_name, message.options["redis_message_id"], message.encode())
    except OUT_OF_ORDER:
        raise  # the first time, a broker asks Redis for the size of its stack
    except Exception as error:
        return Retry(describe(error))
    return message


def _ended(broker: RedisBroker, message: dramatiq.Message[Any], outcome: Outcome) -> Outcome:
    if outcome == DELIVERED_OUTCOME:
        broker.emit_after("enqueue", message, None)
    return outcome
