"""Deliver until nothing is left. If all events that are left wait for a time, let time pass until then."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.storage import timestamp
from outbox.storage.models import FAILED, PENDING, SENDING, OutboxEvent, Waiting
from outbox.storage.progress import parse
from outbox.testing.deliver_here import Delivering, deliver_due
from outbox.testing.errors import NotAccepted, NotFinished
from outbox.testing.move_time import move_back

# SQLite's clock has milliseconds.
MARGIN = timedelta(milliseconds=2)
ROWS_SHOWN = 10


def run_all(*, raise_errors: bool = True, rounds: int = 200) -> int:
    """Deliver until nothing is left, retries and delays included; return how many events and jobs were delivered.

    Time passes as in `advance`. Raise NotFinished, which names the events that wait and what they wait for, if events
    are left that no time makes due, or after this many rounds.

    - `raise_errors`: if an event has failed for good, raise what its handler has raised at the last attempt.
    - `rounds`: how often time may pass until the next event is due.
    """
    box = current()
    done = Delivering()
    failed_before = {row.id for row in _rows(box, FAILED)}
    for _ in range(rounds):
        deliver_due(box, done, None, raise_errors=False)
        next_at = _next_due_at(box)
        if next_at is None:
            break
        move_back(box, max(next_at - _now(box), timedelta(0)) + MARGIN)
    if unfinished := _unfinished(box):
        raise NotFinished(_report(box, unfinished, rounds))
    if raise_errors:
        _raise_failed(done, [row for row in _rows(box, FAILED) if row.id not in failed_before])
    return done.delivered


def _raise_failed(done: Delivering, failed: list[OutboxEvent]) -> None:
    """Raise the last error of an event that has failed for good."""
    ids = {row.id for row in failed}
    Delivering(refusals={key: each for key, each in done.refusals.items() if each[0].id in ids}).raise_first()
    for row in failed:  # it failed without being sent, so no destination has raised an error
        raise NotAccepted(f"{row.event_type} {row.aggregate_type}:{row.aggregate_id} has failed: {row.error_message}")


def _now(box: Outbox) -> datetime:
    with box.dialect.connection():
        return box.dialect.now()


def _rows(box: Outbox, *statuses: str) -> list[OutboxEvent]:
    query = OutboxEvent.select().where(OutboxEvent.status.in_(statuses)).order_by(OutboxEvent.seq)
    with box.dialect.connection():
        return box.dialect.select(query)


def _unfinished(box: Outbox) -> list[OutboxEvent]:
    return _rows(box, PENDING, SENDING)


def _next_due_at(box: Outbox) -> datetime | None:
    """Return when the next event can be claimed, or None if no event waits for a time."""
    times = [
        row.next_attempt_at if row.lease_until is None else max(row.next_attempt_at, row.lease_until)
        for row in _unfinished(box)
        if row.next_attempt_at is not None and row.next_attempt_at != timestamp.LATEST
    ]
    return min(times, default=None)


def _report(box: Outbox, unfinished: list[OutboxEvent], rounds: int) -> str:
    rows = [line for row in unfinished[:ROWS_SHOWN] for line in _described(box, row)]
    if len(unfinished) > ROWS_SHOWN:
        rows.append(f"  and {len(unfinished) - ROWS_SHOWN} more")
    is_bounded = _next_due_at(box) is not None
    why = f"after {rounds} rounds" if is_bounded else "and no time that passes makes them due"
    return f"{len(unfinished)} still waiting, {why}:\n" + "\n".join(rows)


def _described(box: Outbox, row: OutboxEvent) -> Iterator[str]:
    yield f"  {row.event_type}  {row.aggregate_type}:{row.aggregate_id}  {row.id}  {row.attempts} attempts"
    for name, entry in parse(row.progress).items():
        if entry.is_open:
            at = "" if entry.not_before is None else f", due at {entry.not_before:%Y-%m-%d %H:%M:%S}"
            yield f"      {name}: {entry.error or 'waits'}{at}"
    waiting = Waiting.select().where(Waiting.event_id == row.id)
    for each in box.dialect.select(waiting):
        yield f"      {each.destination}: waits behind an earlier event with the ordering key {each.ordering_key!r}"
