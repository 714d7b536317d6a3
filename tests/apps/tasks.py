"""An application with a Dramatiq worker of its own, `dramatiq tests.apps.tasks`: it sets a broker, and its actors emit.

It registers no handlers: its events are delivered by outbox workers. `tests.apps.tasks_and_handlers` has both.
"""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox.dramatiq.actors import declare_actors
from tests.apps.queues import write_queues

settings = outbox.loaded_settings()
broker = RedisBroker(url=os.environ["OUTBOX_TEST_BROKER_URL"], namespace=os.environ["OUTBOX_TEST_BROKER_NAMESPACE"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="shop", max_retries=0)
def place_order(number: int) -> None:
    if "OUTBOX_TEST_DECLARE" in os.environ:  # as an import of `jobs` in the middle of things once did
        declare_actors(broker, settings)
    with outbox.current().database.atomic():
        outbox.emit("Order", number, "test.emitted", {"do": "pass"})


dramatiq.actor(queue_name="shop", max_retries=0)(write_queues)
