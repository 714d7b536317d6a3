"""A destination whose actor, in the same worker, fails with each event that it gets."""

from typing import Any

import dramatiq

import outbox
from outbox.dramatiq import ActorDestination


@dramatiq.actor(max_retries=0)
def fails(envelope: dict[str, Any]) -> None:
    raise ValueError("the actor fails")


outbox.add_destination(ActorDestination(fails, events=["test.*"]))
