"""The Dramatiq part of the outbox: brokers, wake-ups, actors, workers, and actors as destinations of events.

Importing this package has no effects. A process becomes a worker only if it imports `jobs`, or runs `outbox worker` or
`outbox up`.
"""

from __future__ import annotations

from outbox.dramatiq.broker import set_up_broker
from outbox.dramatiq.current_message import message_id
from outbox.dramatiq.destination import ActorDestination
from outbox.dramatiq.hidden_arguments import hide_arguments_in_logs

__all__ = ["ActorDestination", "hide_arguments_in_logs", "message_id", "set_up_broker"]
