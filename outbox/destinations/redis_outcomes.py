"""Send commands to Redis in one round trip, and return the outcome of each.

Dramatiq's Redis broker delivers batches of jobs with it. Streams use `redis_commands`, which is faster.
redis is an optional dependency: import this module only where it is installed.
"""

from __future__ import annotations

import redis
from redis.client import Pipeline

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.errors import Unavailable, describe
from outbox.storage.redis_client import is_unavailable


def execute_pipeline(pipeline: Pipeline) -> list[Outcome]:
    """Execute the pipeline; return the outcome of each of its commands."""
    size = len(pipeline)
    try:
        replies = pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        # Redis may have executed some of the commands, but it is not known which.
        return [Unavailable(describe(error)) for _ in range(size)]
    except BaseException:
        # The thread was interrupted, perhaps before all replies were read. Close the connection, because its next user
        # would take these replies for its own.
        pipeline.connection_pool.disconnect(inuse_connections=False)
        raise
    return [outcome_of(reply) for reply in replies]


def outcome_of(reply: object) -> Outcome:
    """Return the outcome of a command, by its reply or the error in it."""
    if not isinstance(reply, Exception):
        return DELIVERED_OUTCOME
    return Unavailable(describe(reply)) if is_unavailable(reply) else Retry(describe(reply))
