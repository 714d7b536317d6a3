"""The id of the Dramatiq message for which an actor is running: the inbox identifies the message by it.

@dramatiq.actor
@outbox.inbox.once("charge", key=message_id)
def charge(order_id): ...
"""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.middleware import CurrentMessage

from outbox.errors import InvalidMessage


def add_current_message(broker: dramatiq.Broker) -> None:
    """Let the broker's workers remember which message each thread is processing, if they don't yet."""
    if not any(isinstance(each, CurrentMessage) for each in broker.middleware):
        broker.add_middleware(CurrentMessage())


def message_id(*args: Any, **kwargs: Any) -> str:
    """Return the id of the message for which this thread runs an actor.

    It takes the actor's arguments, and ignores them. A message that is enqueued twice, or that Dramatiq retries, keeps
    its id.
    """
    message = CurrentMessage.get_current_message()
    if message is None:
        raise InvalidMessage(
            "There is no current Dramatiq message: the function was called directly, or the actor's broker lacks the "
            "middleware. Add it: broker.add_middleware(dramatiq.middleware.CurrentMessage()). "
            "outbox.transactional(broker, …) and outbox.dramatiq.set_up_broker() do that."
        )
    return message.message_id
