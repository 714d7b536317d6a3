"""The names of our actors. The side that sends messages knows the actors by these names, and declares none."""

from __future__ import annotations

DELIVER = "deliver_outbox_events"
CLEANUP = "cleanup_delivered_outbox_events"
