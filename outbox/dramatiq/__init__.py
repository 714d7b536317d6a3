"""Everything that knows Dramatiq. Importing it has no effects: only `jobs` and the commands make a process a worker."""

from __future__ import annotations

from outbox.dramatiq.broker import set_up_broker
from outbox.dramatiq.destination import ActorDestination

__all__ = ["ActorDestination", "set_up_broker"]
