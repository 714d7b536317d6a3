"""An application with a Dramatiq worker of its own, `dramatiq tests.apps.tasks`: it sets a broker, and its actors emit.

It registers no handlers: its events are delivered by outbox workers. `tests.apps.tasks_and_handlers` has both.
"""

import os
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox.dramatiq.actors import declare_actors

settings = outbox.loaded_settings()
broker = RedisBroker(url=os.environ["OUTBOX_TEST_BROKER_URL"], namespace=os.environ["OUTBOX_TEST_BROKER_NAMESPACE"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="shop", max_retries=0)
def place_order(number: int) -> None:
    if "OUTBOX_TEST_DECLARE" in os.environ:  # as an import of `jobs` in the middle of things once did
        declare_actors(broker, settings)
    with outbox.current().database.atomic():
        outbox.emit("Order", number, "test.emitted", {"do": "pass"})


@dramatiq.actor(queue_name="shop", max_retries=0)
def write_queues(path: str) -> None:
    """Write down which queues this process consumes; in one step."""
    file = Path(path)
    file.with_suffix(".new").write_text(" ".join(sorted(dramatiq.get_broker().get_declared_queues())))
    file.with_suffix(".new").rename(file)
