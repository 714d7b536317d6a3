"""An application whose jobs have one effect each: the inbox knows a job by the id of its message.

`dramatiq tests.apps.charges` runs the actor; `outbox worker tests.apps.charges -Q outbox` enqueues the jobs. Every run
is entered into the ledger as `ran`; the effect is a row in the table `effect`.
"""

import os

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox.dramatiq import message_id
from tests.apps.ledger import write

settings = outbox.loaded_settings()
db = outbox.current().database
# Dramatiq would take a worker for dead after a minute without a heartbeat, and look for dead ones now and then.
broker = RedisBroker(
    client=redis.Redis.from_url(str(settings.redis_url)),
    namespace=settings.namespace,
    heartbeat_timeout=1_000,
    maintenance_chance=1_000_000,
)
dramatiq.set_broker(outbox.transactional(broker, databases=[db]))


@outbox.inbox.once("charge", key=message_id)
def have_effect(number: int) -> None:
    db.execute_sql("INSERT INTO effect (what) VALUES (%s)", (str(number),))


@dramatiq.actor(queue_name="charges", max_retries=1_000, min_backoff=10, max_backoff=100)
def charge(number: int) -> None:
    write("ran", id=message_id(), body=str(number), attempt=1, pid=os.getpid())
    with db.connection_context():
        have_effect(number)
