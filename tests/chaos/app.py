"""What workers and scheduler load: a handler, a webhook and a stream, and a function that is run every second.

The handler and the function enter what they are given into a ledger.

{"do": "pass"}                  returns
{"do": "work", "seconds": s}    returns after a while
{"do": "fail"}                  raises at the first attempt
{"do": "doom"}                  raises every time
{"do": "wait", "gate": path}    returns when the file exists
"""

import os
import time
from pathlib import Path

import outbox
import tests.chaos.jobs  # noqa: F401  (its broker is where jobs go)
from tests.chaos.destinations import (
    BREAKER,
    BUS,
    HANDLER,
    HOOK,
    LEDGER,
    PERIODIC,
    QUEUE,
    QUEUE_NAME,
    RABBITMQ,
    STREAM,
    STREAM_KEY,
    WEBHOOK,
    types_for,
)
from tests.chaos.ledger import Ledger, digest

# Longer than any hanging is let go on: who waits behind a call that hangs waits until that is over.
HOOK_TIMEOUT, BUS_TIMEOUT = 30.0, 30.0

ledger = Ledger(os.environ[LEDGER])


@outbox.handler(*types_for(HANDLER), name=HANDLER)
def handle(event: outbox.Event) -> None:
    body = digest(event.body)
    ledger.write("began", id=str(event.id), attempt=event.attempt, pid=os.getpid())
    behave(event)
    ledger.write("accepted", id=str(event.id), body=body, payload=body, attempt=event.attempt, pid=os.getpid())


def behave(event: outbox.Event) -> None:
    match event.payload["do"]:
        case "work":
            time.sleep(event.payload["seconds"])
        case "fail" if event.attempt == 1:
            raise ValueError("the first attempt fails")
        case "doom":
            raise ValueError("this one always fails")
        case "wait":
            while not Path(event.payload["gate"]).exists():
                time.sleep(0.01)


@outbox.periodic(seconds=1, name=PERIODIC, catch_up="all")
def every_second(run: outbox.Run) -> None:
    ledger.write("ran", scheduled_at=run.scheduled_at.timestamp())


webhook = outbox.Webhook(WEBHOOK, os.environ[HOOK], events=types_for(WEBHOOK), timeout=HOOK_TIMEOUT)
if not os.environ.get(BREAKER):
    # It would leave a receiver alone that was down, for longer than a short run takes.
    webhook.limits = outbox.Limits(open_after=None)
outbox.add_destination(webhook)
stream = outbox.RedisStream(
    STREAM, url=os.environ[BUS], stream=STREAM_KEY, events=types_for(STREAM), timeout=BUS_TIMEOUT
)
if not os.environ.get(BREAKER):
    stream.limits = outbox.Limits(open_after=None)
outbox.add_destination(stream)
if RABBITMQ in os.environ:
    queue = outbox.Rabbit(
        QUEUE,
        url=os.environ[RABBITMQ],
        exchange="",
        routing_key=QUEUE_NAME,
        events=types_for(QUEUE),
        timeout=BUS_TIMEOUT,
    )
    if not os.environ.get(BREAKER):
        queue.limits = outbox.Limits(open_after=None)
    outbox.add_destination(queue)
