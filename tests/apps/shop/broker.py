"""The application's broker: results, groups, a transaction for each message. The last line makes it transactional."""

import os
from typing import Any

import dramatiq
import peewee
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks, Middleware
from dramatiq.rate_limits.backends import RedisBackend as RedisRateLimits
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as RedisResults

import outbox

db = outbox.current().database
client = redis.Redis.from_url(os.environ["OUTBOX_TEST_BROKER_URL"])
namespace = os.environ["OUTBOX_TEST_BROKER_NAMESPACE"]


class Record(peewee.Model):
    """What an actor has done."""

    what = peewee.TextField()

    class Meta:
        database = db
        table_name = "record"


class TransactionPerMessage(Middleware):
    """Runs every message in a transaction: committed if the actor returns, rolled back if it raises."""

    def before_process_message(self, broker: Any, message: Any) -> None:
        db.connect(reuse_if_open=True)
        db.session_start()

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        end = db.session_commit if exception is None else db.session_rollback
        end()
        if not db.is_closed():
            db.close()


broker = RedisBroker(client=client, namespace=namespace, heartbeat_timeout=1_000, maintenance_chance=1_000_000)
# First in the list, so last to be told that a message was processed: its transaction is open when Dramatiq's own
# middleware enqueues a retry, the next step of a pipeline or the callback of a group.
broker.add_middleware(TransactionPerMessage(), before=type(broker.middleware[0]))
broker.add_middleware(GroupCallbacks(RedisRateLimits(client=client)))
results = RedisResults(client=client, namespace=f"{namespace}-results")
broker.add_middleware(Results(backend=results))
dramatiq.set_broker(broker)
outbox.transactional(broker, databases=[db])
