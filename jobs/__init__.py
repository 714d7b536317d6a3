"""Dramatiq workers for the outbox: `dramatiq jobs your.module`, where `your.module` holds your handlers.

Importing this package sets up Dramatiq's broker from the environment, unless the application has set one already,
and declares the actors on it.
"""

from __future__ import annotations

from outbox.dramatiq.destination import ActorDestination
from outbox.dramatiq.readiness import under_dramatiq_cli
from outbox.errors import OutboxError

try:
    from outbox.dramatiq.actors import cleanup_delivered_outbox_events, deliver_outbox_events
except OutboxError as error:
    if under_dramatiq_cli():
        raise SystemExit(f"outbox: {error}") from None  # one clear line; the command line would print a traceback
    raise

__all__ = ["ActorDestination", "cleanup_delivered_outbox_events", "deliver_outbox_events"]
