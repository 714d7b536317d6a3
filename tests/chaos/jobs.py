"""The application's jobs: an actor on a broker of its own, in the stream's Redis, which hangs, but loses nothing.

`dramatiq tests.chaos.jobs:broker` runs them. The effect is a row, written through the inbox: one, however often the
message comes.
"""

import json
import os

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox.dramatiq import message_id
from tests.chaos.destinations import BUS, JOB, JOB_LEDGER
from tests.chaos.ledger import Ledger, digest

# Longer than any hanging is let go on.
TIMEOUT = 30.0

broker = RedisBroker(client=redis.Redis.from_url(os.environ[BUS], socket_timeout=TIMEOUT), namespace="jobs")
db = outbox.current().database
outbox.transactional(broker, databases=[db])
ledger = Ledger(os.environ[JOB_LEDGER])


@outbox.inbox.once(JOB, key=message_id)
def have_effect(token: str) -> None:
    db.execute_sql("INSERT INTO chaos_effect (message) VALUES (%s)", (message_id(),))


@dramatiq.actor(broker=broker, actor_name=JOB, max_retries=10_000, min_backoff=50, max_backoff=500)
def run_job(token: str) -> None:
    try:
        with outbox.current().dialect.connection():
            have_effect(token)
    except Exception:
        outbox.current().dialect.discard_connection()
        raise
    told = digest_of(token)
    ledger.write("accepted", id=message_id(), body=told, payload=told, attempt=1, pid=os.getpid())


def digest_of(token: str) -> str:
    """Of the arguments, as the row and the message have them."""
    return digest(json.dumps([token], separators=(",", ":")).encode())
