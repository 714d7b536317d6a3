"""The names of the outbox's two Dramatiq actors. Each named outbox has two of its own.

A process that sends messages to the actors needs only their names. It must not declare the actors (see `actors`).
"""

from __future__ import annotations

DELIVER = "deliver_outbox_events"
CLEANUP = "cleanup_delivered_outbox_events"


def actor_of(actor_name: str, outbox: str | None) -> str:
    """Return the name of this actor for an outbox that `configure(name=…)` has named; None is the default outbox."""
    return actor_name if outbox is None else f"{actor_name}.{outbox}"


def is_outbox_actor(actor_name: str) -> bool:
    """Return whether this is the name of one of the two actors, of any outbox."""
    return actor_name.partition(".")[0] in (DELIVER, CLEANUP)
