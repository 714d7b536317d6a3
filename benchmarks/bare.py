"""The limit: our own SQL through psycopg, in a loop, and nothing else.

`python -m benchmarks.bare URL BATCH THREADS [WHAT ADDRESS]` says that it is ready, waits for a line, and claims and
settles until nothing is due, with a connection for each thread. In between, each batch is added to a stream of the
Redis at the address (`stream`), enqueued by Dramatiq's own means if it consists of jobs (`jobs`), both in one round
trip, posted to the address by libcurl (`webhooks`), or published to a message broker there (`bus_loops.py`).
"""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import redis
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from benchmarks import bus_loops
from benchmarks.hook import AT_ONCE
from benchmarks.transfers import Transfers
from outbox.storage import statements
from outbox.table_names import Tables

STATEMENTS = statements.postgres(Tables())
LEASE_SECONDS = 30.0
STREAM = "bare"
AUDIENCE = 1  # a number like any other
WHAT = STREAMS, JOBS, WEBHOOKS = "stream", "jobs", "webhooks"

ENVELOPE = b'{"id":"%b","type":"%b","aggregate_type":"%b","aggregate_id":"%b","time":"%b","data":%b}'


def claim(connection: psycopg.Connection[Any], size: int, lease_id: UUID) -> list[Any]:
    return connection.execute(STATEMENTS.claim.encode(), ("-infinity", True, size, lease_id, LEASE_SECONDS)).fetchall()


def settle(connection: psycopg.Connection[Any], rows: list[Any], lease_id: UUID) -> None:
    ids = f"{{{','.join(row[0] for row in rows)}}}"
    connection.execute(STATEMENTS.delivered.encode(), (AUDIENCE, None, ids, lease_id))


def drain(connection: psycopg.Connection[Any], size: int, deliver: Callable[[list[Any]], None] | None) -> None:
    while True:
        lease_id = uuid4()
        rows = claim(connection, size, lease_id)
        if not rows:
            return
        if deliver is not None:
            deliver(rows)
        settle(connection, rows, lease_id)


def add(client: redis.Redis, rows: list[Any]) -> None:
    """An entry with what the stream destination's has."""
    with client.pipeline(transaction=False) as pipeline:
        for id, _, aggregate_type, aggregate_id, event_type, _, payload, *_, created_at, _, _, _, _, _ in rows:
            about = {"aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "time": created_at.isoformat()}
            entry: dict[Any, Any] = {"id": str(id), "type": event_type, **about, "data": payload}
            pipeline.xadd(STREAM, entry)
        pipeline.execute()


def enqueue(broker: RedisBroker, rows: list[Any]) -> None:
    """The messages that are stored in the rows."""
    with broker.client.pipeline(transaction=False) as pipeline:
        into_pipeline: Any = copy.copy(broker)
        into_pipeline.scripts = broker.scripts | {"dispatch": partial(broker.scripts["dispatch"], client=pipeline)}
        for row in rows:
            message = Message.decode(row[6].encode()).copy(options={"redis_message_id": str(uuid4())})
            into_pipeline.do_enqueue(message.queue_name, message.options["redis_message_id"], message.encode())
        pipeline.execute()


def post(transfers: Transfers, rows: list[Any]) -> None:
    """The envelope that a webhook sends, made as simply as it can be."""
    transfers.post((row[0], envelope(row)) for row in rows)


def envelope(row: Any) -> bytes:
    id, _, aggregate_type, aggregate_id, event_type, _, payload, *_, created_at, _, _, _, _, _ = row
    texts = (id, event_type, aggregate_type, aggregate_id, created_at.isoformat(), payload)
    return ENVELOPE % tuple(text.encode() for text in texts)


def delivery(what: str, address: str, threads: int) -> Callable[[list[Any]], None]:
    if what == WEBHOOKS:
        return partial(post, Transfers(address, AT_ONCE // threads))
    if what in bus_loops.BUSES:
        return bus_loops.delivery(what, address)
    client = redis.Redis.from_url(address)
    return partial(enqueue, RedisBroker(client=client)) if what == JOBS else partial(add, client)


def main(url: str, batch: int, threads: int, what: str | None = None, address: str = "") -> None:
    delivers = [None if what is None else delivery(what, address, threads) for _ in range(threads)]
    connections = [psycopg.connect(url, autocommit=True) for _ in range(threads)]
    drains = [
        threading.Thread(target=drain, args=(connection, batch, deliver))
        for connection, deliver in zip(connections, delivers, strict=True)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in drains:
        thread.start()
    for thread in drains:
        thread.join()


@contextmanager
def loops(processes: int, *arguments: str | int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many of these programs, ready; they begin when the block is left, and are done when this returns."""
    command = [sys.executable, "-m", "benchmarks.bare", *map(str, arguments)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(processes)
        ]
        for process in started:
            assert process.stdout is not None  # noqa: S101  (for the type checker)
            process.stdout.readline()
        yield started
        for process in started:
            assert process.stdin is not None  # noqa: S101  (for the type checker)
            process.stdin.write("\n")
            process.stdin.flush()
        for process in started:
            if process.wait() != 0:
                raise RuntimeError("the bare loop failed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
