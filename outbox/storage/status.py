"""Define which events count as unfinished, delivered, failed and late, for the whole library.

Each condition is a text that the SQL of the library contains (`sql/`); a function of the same name returns it for
queries that are built with Peewee. The conditions avoid the column `status`, which no index has: an event without a due
time has ended, and an event that has ended is delivered if it has a time of delivery.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import peewee

from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.timestamp import LATEST

# Pending or sending.
IS_UNFINISHED = "next_attempt_at IS NOT NULL"
# Delivered or failed.
HAS_ENDED = "next_attempt_at IS NULL"
IS_DELIVERED = "delivered_at IS NOT NULL"
IS_FAILED = "next_attempt_at IS NULL AND delivered_at IS NULL"

# An event that no destination may have received: it was never claimed, or was given back before a destination took it.
# (An event that an operator has retried has an error, and one that was replayed has an audience.)
IS_UNTRIED = """next_attempt_at IS NOT NULL AND attempts = 0 AND lease_id IS NULL AND progress IS NULL
    AND error_message IS NULL AND audience IS NULL"""

# How long an event has been due when it counts as late: the dashboard shows an alert then.
LATE = timedelta(minutes=1)
# And when `outbox doctor` reports it.
VERY_LATE = timedelta(minutes=5)


def is_parked(event: OutboxEvent) -> bool:
    """Return whether all that is left to do for an event waits behind earlier events of its ordering key.

    Then it is not due until it is released, and its due time is LATEST.
    """
    return event.order_state is not None and event.next_attempt_at == LATEST


# Peewee expressions, all of which must hold.
Conditions = list[Any]


def is_unfinished() -> Conditions:
    """Return the conditions that hold for events that are pending or sending."""
    return [peewee.SQL(f"({IS_UNFINISHED})")]


def has_ended() -> Conditions:
    """Return the conditions that hold for events that are delivered or failed."""
    return [peewee.SQL(f"({HAS_ENDED})")]


def is_delivered() -> Conditions:
    """Return the conditions that hold for delivered events."""
    return [peewee.SQL(f"({IS_DELIVERED})")]


def is_failed() -> Conditions:
    """Return the conditions that hold for failed events."""
    return [peewee.SQL(f"({IS_FAILED})")]


def status_is(status: str) -> Conditions:
    """Return the conditions that hold for events with this status."""
    if status == DELIVERED:
        return is_delivered()
    if status == FAILED:
        return is_failed()
    return [*is_unfinished(), OutboxEvent.status == status]
