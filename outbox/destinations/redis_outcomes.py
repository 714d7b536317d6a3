"""Send commands to Redis in one round trip, and return the outcome of each.

Redis Streams and Dramatiq's Redis broker deliver many events that way. redis is an extra: import this module only where
it is installed.
"""

from __future__ import annotations

import redis
from redis.client import Pipeline

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.errors import Unavailable, describe
from outbox.storage.redis_client import is_unavailable


def outcomes(pipeline: Pipeline) -> list[Outcome]:
    """Execute the pipeline; return the outcome of each of its commands."""
    size = len(pipeline)
    try:
        replies = pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        # Redis may have executed some of the commands: which ones is unknown.
        return [Unavailable(describe(error)) for _ in range(size)]
    except BaseException:
        # Interrupted before all replies were read: the next user of the connection would take them for its own.
        pipeline.connection_pool.disconnect(inuse_connections=False)
        raise
    return [_outcome(reply) for reply in replies]


def _outcome(reply: object) -> Outcome:
    if not isinstance(reply, Exception):
        return DELIVERED_OUTCOME
    return Unavailable(describe(reply)) if is_unavailable(reply) else Retry(describe(reply))
