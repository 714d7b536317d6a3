"""Write streams, run consumers, and look at what they have done."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import redis

import outbox
from outbox.consumer.consumer_group import ConsumerGroup
from outbox.storage.ids import uuid7
from outbox.storage.models import InboxMessage
from tests.conftest import Note
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true

GROUP = "outbox"

# For what has nothing to do with the database.
on_any_database = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

MakeConsumer = Callable[..., outbox.Consumer]


def fields(payload: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    """Return the fields of an entry as a RedisStream writes them."""
    return {
        "id": str(uuid7()),
        "type": "note.taken",
        "aggregate_type": "Note",
        "aggregate_id": "1",
        "time": "2026-01-31T12:00:00.250000+00:00",
        "data": json.dumps({} if payload is None else payload),
    } | others


class Stream:
    """A stream, its dead-letter stream, and the state of a group."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.client: Any = client
        self.key = key

    def add(self, payload: dict[str, Any] | None = None, **others: Any) -> UUID:
        """Add an entry, and return its event's id."""
        entry = fields(payload, **others)
        self.client.xadd(self.key, entry)
        return UUID(entry["id"])

    def pending(self, group: str = GROUP) -> list[int]:
        """Return how often each pending entry was delivered."""
        rows = self.client.xpending_range(self.key, group, "-", "+", 1000) if self._group(group) else []
        return [row["times_delivered"] for row in rows]

    def left(self, group: str = GROUP) -> int:
        """Return how many entries were not acknowledged, or not even delivered."""
        found = self._group(group)
        if found is None:
            return int(self.client.xlen(self.key))
        return len(self.client.xrange(self.key, b"(" + found["last-delivered-id"])) + int(found["pending"])

    def _group(self, name: str) -> Any:
        if not self.client.exists(self.key):
            return None
        return next((each for each in self.client.xinfo_groups(self.key) if each["name"] == name.encode()), None)

    def parked(self) -> list[dict[bytes, bytes]]:
        return [entry for _, entry in self.client.xrange(f"{self.key}.dead")]

    def consumers(self, group: str = GROUP) -> list[bytes]:
        return [each["name"] for each in self.client.xinfo_consumers(self.key, group)]

    def fetch(self, name: str = "dead", group: str = GROUP, count: int = 1000) -> list[str]:
        """Read entries as a consumer that crashes before it processes them; return their ids."""
        if self._group(group) is None:
            self.client.xgroup_create(self.key, group, id="0", mkstream=True)
        ((_, entries),) = self.client.xreadgroup(group, name, {self.key: ">"}, count=count)
        return [id.decode() for id, _ in entries]

    def idle_seconds(self, id: str, group: str = GROUP) -> float:
        """Return the idle time of a pending entry."""
        (row,) = self.client.xpending_range(self.key, group, id, id, 1)
        return float(row["time_since_delivered"] / 1000)


class Crash(BaseException):
    """Ends the consumer as if its process had been killed."""


def make_group(url: str, stream: Stream, consumer: str = "me") -> ConsumerGroup:
    return ConsumerGroup(url, stream.key, group=GROUP, consumer=consumer, dead_letter=f"{stream.key}.dead", timeout=5)


def dies(consumer: outbox.Consumer) -> None:
    """Run a consumer until a handler raises Crash. One that is given nothing is stopped, so that the test fails."""
    stopped = threading.Event()
    patience = threading.Timer(PATIENCE_SECONDS, stopped.set)
    patience.start()
    try:
        with pytest.raises(Crash):
            consumer.run(stopped)
    finally:
        patience.cancel()


@contextmanager
def running(*consumers: outbox.Consumer) -> Iterator[None]:
    """Run each consumer in a thread during the block; raise the error that ended one of them."""
    stopped = threading.Event()
    with ThreadPoolExecutor(len(consumers)) as threads:
        runs = [threads.submit(consumer.run, stopped) for consumer in consumers]
        try:
            yield
        finally:
            stopped.set()
    for run in runs:
        run.result()


def consume(*consumers: outbox.Consumer, until: Callable[[], Any]) -> None:
    with running(*consumers):
        becomes_true(until)


def note(text: object) -> None:
    """Write a row, as the effect of a handler, in the open transaction."""
    Note.create(text=str(text))


def notes() -> list[str]:
    """Return the effects that were committed."""
    return sorted(each.text for each in Note.select())


def dealt_with() -> list[tuple[str, str]]:
    """Return the rows of the inbox."""
    return sorted((each.message_id, each.handler_name) for each in InboxMessage.select())
