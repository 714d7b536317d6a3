"""An application whose events go to an actor of its own; what it is given is entered into the ledger."""

import json
import os
from typing import Any

import dramatiq

import outbox
import tests.apps.ledger as handlers
from outbox.dramatiq import ActorDestination


@dramatiq.actor(queue_name="index", max_retries=0)
def index(event: dict[str, Any]) -> None:
    handlers.write("indexed", id=event["id"], body=json.dumps(event), attempt=1, pid=os.getpid())


outbox.add_destination(ActorDestination(index, events=["test.*"]))
