"""Actors with the inbox before them: one for events, one for commands; what they do is a row in the table `effect`."""

from typing import Any

import dramatiq
import peewee

import outbox
from outbox.dramatiq import ActorDestination


class Effect(peewee.Model):
    what = peewee.TextField()

    class Meta:
        database = outbox.current().database
        table_name = "effect"


@dramatiq.actor(queue_name="index", max_retries=0)
@outbox.inbox.once("index")
def index(event: dict[str, Any]) -> None:
    """A message for each time that the event is sent, and one event."""
    Effect.create(what=event["id"])


@dramatiq.actor(queue_name="start", max_retries=0)
@outbox.inbox.once("start", key="command_id")
def start(name: str, command_id: str) -> str:
    Effect.create(what=f"{name} {command_id}")
    return "started"


outbox.add_destination(ActorDestination(index, events=["test.*"]))
