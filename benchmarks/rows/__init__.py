"""What is measured, a file each: the thing and what it is compared with, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.ground import Ground
from benchmarks.row import Sample
from benchmarks.rows import (
    backlog,
    buses,
    drain,
    embedded,
    emit,
    emit_many,
    encryption,
    enqueue,
    failing,
    growth,
    in_flight,
    jobs,
    latency,
    ordering,
    send,
    several,
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
    "several": several.measure,
    "failing": failing.measure,
    "encryption": encryption.measure,
    "latency": latency.measure,
    "webhook": webhook.measure,
    "stream": stream.measure,
    **buses.BUSES,
    "send": send.measure,
    "jobs": jobs.measure,
    "ordering": ordering.measure,
    "embedded": embedded.measure,
    "growth": growth.measure,
    "backlog": backlog.measure,
    "snapshot": snapshot.measure,
    "in_flight": in_flight.measure,
    "enqueue": enqueue.measure,
}
# These take minutes: one round says enough.
ONCE = ("backlog", "snapshot")
