"""Capture what an application emits and sends: the rows of the outbox's table, as the test's transaction sees them.

The table is read, and calls of `emit` are not recorded. So an event of a savepoint that was rolled back is not
captured, and neither is an event that was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import overload

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.storage.models import EVENT, JOB, OutboxEvent

# The `capture` blocks that are open, the innermost last.
_open: ContextVar[tuple[Captured, ...]] = ContextVar("outbox_captured", default=())


class Captured(Sequence[OutboxEvent]):
    """The events and jobs that were stored since it was made, in the order of their numbers.

    Inside the block of `capture` it reads the table at each use. After the block it keeps what it last read.
    """

    def __init__(self, read: Callable[[], list[OutboxEvent]]) -> None:
        self._read = read
        self._kept: list[OutboxEvent] | None = None

    @property
    def rows(self) -> list[OutboxEvent]:
        """Return the events and the jobs."""
        return self._read() if self._kept is None else self._kept

    @property
    def events(self) -> list[OutboxEvent]:
        """Return the events, without the jobs."""
        return [row for row in self.rows if row.kind == EVENT]

    @property
    def jobs(self) -> list[OutboxEvent]:
        """Return the jobs: `event_type` is the actor's name, and `payload` the message."""
        return [row for row in self.rows if row.kind == JOB]

    @property
    def types(self) -> list[str]:
        """Return the types of the events, and the actors of the jobs."""
        return [row.event_type for row in self.rows]

    def keep(self) -> None:
        """Read the table for the last time."""
        self._kept = self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[OutboxEvent]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> OutboxEvent: ...
    @overload
    def __getitem__(self, index: slice) -> list[OutboxEvent]: ...
    def __getitem__(self, index: int | slice) -> OutboxEvent | list[OutboxEvent]:
        return self.rows[index]

    def __repr__(self) -> str:
        return f"<Captured {', '.join(self.types) or 'nothing'}>"


@contextmanager
def capture() -> Iterator[Captured]:
    """Capture what is emitted and sent inside the block."""
    with capturing() as captured:
        yield captured
        captured.keep()


@contextmanager
def capturing() -> Iterator[Captured]:
    """Do the same, but don't read the table at the end: a test may have left its transaction unusable."""
    box = current()
    first = _newest(box)
    captured = Captured(lambda: _read(box, first))
    before = _open.get()
    token = _open.set((*before, captured))
    try:
        yield captured
    finally:
        _open.reset(token)


def captured_now() -> Captured:
    """Return what the innermost open `capture` has captured; without one, everything in the table."""
    found = _open.get()
    if found:
        return found[-1]
    box = current()
    return Captured(lambda: _read(box, 0))


def _newest(box: Outbox) -> int:
    """Return the highest number in the table, also of rows that are not committed yet in this transaction."""
    with box.dialect.connection():
        newest = box.dialect.select(OutboxEvent.select(OutboxEvent.seq).order_by(OutboxEvent.seq.desc()).limit(1))
    return newest[0].seq if newest else 0


def _read(box: Outbox, after: int) -> list[OutboxEvent]:
    query = OutboxEvent.select().where((OutboxEvent.seq > after) & OutboxEvent.kind.in_((EVENT, JOB)))
    with box.dialect.connection():
        return [box.decrypted(row) for row in box.dialect.select(query.order_by(OutboxEvent.seq))]
