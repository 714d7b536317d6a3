"""`Source`: where a consumer gets its entries from, and where it writes their outcomes.

`redis_source.py` reads a stream of Redis, `rabbit_source.py` a queue of RabbitMQ. Another broker needs a class with
these methods and a line in `find_source.py`; the loop, the inbox and the rules of retries stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol

from outbox.consumer.entry import Entry


class SourceState(NamedTuple):
    """`behind`: how many entries no consumer was given yet. `pending`: how many were given to one, and have not ended.

    `pending_is_own` is true if `pending` counts what this consumer has, and not what all consumers have: Redis knows
    the latter, RabbitMQ does not tell it.
    """

    behind: int
    pending: int
    pending_is_own: bool = False

    def __str__(self) -> str:
        return f"{self.behind} behind, {self.pending} pending"


class Source(Protocol):
    """One consumer's view of a stream or queue. All methods are called in the consumer's thread.

    A method that needs the server raises `Unavailable` if it can't be reached. The consumer then pauses and tries
    again; entries whose outcome could not be written are delivered again, and the inbox skips what was processed.
    """

    # Words for log lines: the name of the server, and "stream" or "queue".
    server: ClassVar[str]
    kind: ClassVar[str]
    # The name of the stream or queue, and of the one for parked entries.
    name: str
    dead_letter: str

    def check(self) -> None:
        """Raise a SettingsError if the source can't be used, and `Unavailable` if it can't be reached."""

    def open(self) -> None:
        """Make the source ready to be read."""

    def read(self, seconds: float) -> Sequence[Entry]:
        """Return new entries. Wait up to `seconds` for the first one."""

    def seconds_until_due(self) -> float:
        """Return after how long `due_again` must be called."""

    def due_again(self) -> Iterator[Entry]:
        """Yield entries that are due again, because they failed or their consumer died: each just before its call.

        Yield only a limited number, so that new entries don't wait long.
        """

    def keep(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Keep entries that wait in this consumer from being given to another one; return those that still are its own.

        The consumer calls it every third of `idle_seconds`.
        """

    def resume(self, entries: Iterable[Entry], seconds: float) -> Iterator[Entry]:
        """Yield those entries that no consumer was given since they were settled with `Redeliver`, `seconds` ago."""

    def acknowledge(self, processed: Sequence[Entry], redelivered: Sequence[tuple[Entry, int]]) -> None:
        """Acknowledge processed entries, and let the others be delivered again, each with its counted deliveries."""

    def park(self, entry: Entry, error: str) -> None:
        """Move an entry to `dead_letter`, with the error, and end it."""

    def state(self) -> SourceState:
        """Return how far the consumers are behind."""

    def clean_up(self) -> None:
        """Remove what dead consumers have left behind. The consumer calls it once an hour."""

    def leave(self) -> None:
        """Give back what this consumer has not begun with."""

    def close(self) -> None:
        """Close the connections. It never raises an error."""
