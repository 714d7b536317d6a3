"""Idempotent actors that come to harm, on a broker of the application's own; what they do is a row in `effect`.

`charge` has its effect, and then does as its command says:

{"do": "fail", "times": n}     raises the first n times
{"do": "wait", "gate": path}   says so, and returns when the file exists
{"do": "linger", "gate": path} returns; its worker says so, and acknowledges the message when the file exists
"""

import logging
import os
import time
from pathlib import Path
from typing import Any

import dramatiq
import peewee
import redis
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox.dramatiq.worker import prepare_worker

logging.getLogger("outbox").setLevel(logging.DEBUG)  # it says then what it skips
settings = outbox.loaded_settings()
# Dramatiq would take a worker for dead after a minute without a heartbeat, and look for dead ones now and then.
broker = RedisBroker(
    client=redis.Redis.from_url(str(settings.redis_url)),
    namespace=settings.namespace,
    heartbeat_timeout=1_000,
    maintenance_chance=1_000_000,
)
dramatiq.set_broker(broker)

prepare_worker()


class Effect(peewee.Model):
    what = peewee.TextField()

    class Meta:
        database = outbox.current().database
        table_name = "effect"


def say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


def wait(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.01)


class Linger(dramatiq.Middleware):
    """Between the actor's end, which has committed, and the acknowledgement."""

    def after_process_message(self, broker: dramatiq.Broker, message: Any, **_: Any) -> None:
        if message.kwargs.get("do") == "linger" and not Path(message.kwargs["gate"]).exists():
            say(f"committed {message.kwargs['command_id']}")
            wait(message.kwargs["gate"])


broker.add_middleware(Linger())
failures: list[str] = []


@dramatiq.actor(queue_name="charge", max_retries=5, min_backoff=10, max_backoff=50)
@outbox.inbox.once("charge", key="command_id")
def charge(command_id: str, do: str, times: int = 0, gate: str = "") -> None:
    Effect.create(what=command_id)
    if do == "fail" and failures.count(command_id) < times:
        failures.append(command_id)
        say(f"failed {command_id}")
        raise ValueError("after the effect")
    if do == "wait":
        say(f"waiting {command_id}")
        wait(gate)


outbox.ignore("*")
