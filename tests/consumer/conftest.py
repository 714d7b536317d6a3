"""A stream for each test, and consumers that stop without a long wait."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import outbox
from outbox.consumer.options import Intervals
from outbox.core import Outbox
from tests.consumer.streams import MakeConsumer, Stream
from tests.support.processes import make_stage, stage
from tests.support.servers import Redis

__all__ = ["make_stage", "stage"]


@pytest.fixture
def stream(redis_server: Redis) -> Iterator[Stream]:
    with redis.Redis.from_url(redis_server.url) as client:
        stream = Stream(client, f"test-{uuid.uuid4().hex}")
        yield stream
        for key in client.scan_iter(f"{stream.key}*"):
            client.delete(key)


@pytest.fixture
def make_consumer(box: Outbox, redis_server: Redis, stream: Stream) -> MakeConsumer:
    """Make consumers of the test's stream; an entry is delivered again after a moment.

    They stop without a long wait. A test may give them other intervals.
    """

    def make(intervals: dict[str, float] | None = None, **options: Any) -> outbox.Consumer:
        defaults: dict[str, Any] = {"url": redis_server.url, "idle_seconds": 0.2}
        given = {"block_seconds": 0.05} | ({} if intervals is None else intervals)

        class QuickConsumer(outbox.Consumer):
            intervals = Intervals(**given)

        return QuickConsumer(stream.key, **defaults | options)

    return make
