"""Enqueue messages one after the other, for brokers that can't take many in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dramatiq
from dramatiq.errors import QueueNotFound

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.errors import Unavailable, describe

Messages = Sequence[dramatiq.Message[Any]]


def enqueue_each(
    enqueue: Callable[[dramatiq.Message[Any]], object], messages: Messages, *connection_errors: type[Exception]
) -> list[Outcome]:
    """Call `enqueue` for each message; return an outcome for each.

    After a connection error the remaining messages are not tried, because each would wait for the same timeout. Their
    outcome is Unavailable too.
    """
    outcomes: list[Outcome] = []
    for message in messages:
        try:
            enqueue(message)
        except connection_errors as error:
            return outcomes + [Unavailable(describe(error)) for _ in messages[len(outcomes) :]]
        except QueueNotFound as error:  # an in-process broker: a module that declares the queue's actors is missing
            outcomes.append(Unavailable(describe(error)))
        except Exception as error:  # an error in one message must not stop the others
            outcomes.append(Retry(describe(error)))
        else:
            outcomes.append(DELIVERED_OUTCOME)
    return outcomes
