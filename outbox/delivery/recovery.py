"""Make events due that wait for a destination which was reached again after an outage.

`share` calls it when it has seen a circuit breaker close, and each drain before it claims. One call runs one statement
for each such destination, which changes a limited number of events.
"""

from __future__ import annotations

import logging
import math

from outbox.delivery.context import DeliveryContext
from outbox.delivery.recovered import Step
from outbox.errors import as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.sooner import make_due_sooner

logger = logging.getLogger(__name__)


def make_due_again(context: DeliveryContext) -> int:
    """Make the next events due of each destination that was reached again, and return how many."""
    return sum(_take_step(context, name, step) for name, step in context.recovery.take_due())


def _take_step(context: DeliveryContext, name: str, step: Step) -> int:
    try:
        done = make_due_sooner(
            context.dialect, name, since=step.position, step_seconds=1 / step.per_second, most_changed=step.events
        )
    except CONNECTION_ERRORS as error:
        logger.warning(
            "%s was reached again, but the events that wait for it could not be made due: %s They are tried when their "
            "waits end.",
            name,
            as_sentence(error),
        )
        return 0
    if done.changed:
        seconds = done.changed / step.per_second
        logger.info("%s was reached again: %d events are due within %.0f s", name, done.changed, seconds)
        for second in range(math.ceil(seconds) + 1):
            context.notifier.notify_in(second)
    if done.position is not None:
        context.recovery.go_on(name, step, done.position, done.changed / step.per_second)
    return done.changed
