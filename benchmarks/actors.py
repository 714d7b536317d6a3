"""The actor of the measurements of jobs. Its worker only enqueues: nothing runs it."""

from __future__ import annotations

import dramatiq

from outbox.dramatiq.broker import set_up_broker

ACTOR, QUEUE = "nothing", "bench-jobs"


def do_nothing(text: str) -> None:
    pass


def nothing_on(broker: dramatiq.Broker) -> dramatiq.Actor[[str], None]:
    """Declare the actor."""
    return dramatiq.actor(actor_name=ACTOR, queue_name=QUEUE, broker=broker)(do_nothing)


def declare() -> None:
    """Declare the actor in a worker."""
    nothing_on(set_up_broker())
