"""The names of the outbox's two Dramatiq actors.

A process that sends messages to the actors needs only their names. It must not declare the actors (see `actors`).
"""

from __future__ import annotations

DELIVER = "deliver_outbox_events"
CLEANUP = "cleanup_delivered_outbox_events"
