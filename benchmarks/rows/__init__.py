"""What is measured, a file each: the thing and what it is compared with, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.ground import Ground
from benchmarks.row import Sample
from benchmarks.rows import (
    backlog,
    drain,
    emit,
    emit_many,
    enqueue,
    growth,
    in_flight,
    jobs,
    latency,
    send,
    snapshot,
    stream,
    transaction,
    webhook,
)

Measure = Callable[[Ground], Iterator[Sample]]

# By the name that `--only` takes, and in the order of the table.
MEASUREMENTS: dict[str, Measure] = {
    "emit": emit.measure,
    "transaction": transaction.measure,
    "emit_many": emit_many.measure,
    "drain": drain.measure,
    "latency": latency.measure,
    "webhook": webhook.measure,
    "stream": stream.measure,
    "send": send.measure,
    "jobs": jobs.measure,
    "growth": growth.measure,
    "backlog": backlog.measure,
    "snapshot": snapshot.measure,
    "in_flight": in_flight.measure,
    "enqueue": enqueue.measure,
}
# These take minutes: one round says enough.
ONCE = ("backlog", "snapshot")
