"""The Dramatiq part of the outbox: brokers, wake-ups, actors, workers, and actors as destinations of events.

Importing this package has no effects. A process becomes a worker only if it imports `jobs`, or runs `outbox worker` or
`outbox up`.
"""

from __future__ import annotations

from outbox.dramatiq.broker import set_up_broker
from outbox.dramatiq.current_message import message_id
from outbox.dramatiq.destination import ActorDestination

__all__ = ["ActorDestination", "message_id", "set_up_broker"]
