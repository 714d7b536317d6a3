"""The names of our actors: all that the notifying side knows of them."""

from __future__ import annotations

DELIVER = "deliver_outbox_events"
CLEANUP = "cleanup_delivered_outbox_events"
