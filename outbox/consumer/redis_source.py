"""Read a stream of Redis as a member of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from outbox.consumer.consumer_group import ConsumerGroup
from outbox.consumer.entry import Entry
from outbox.consumer.options import ConsumerOptions
from outbox.consumer.source import SourceState

# The longest time between two searches for entries to take over.
TAKE_OVER_SECONDS = 5.0


class RedisSource:
    """The stream and the group of one consumer.

    `block_seconds`: the longest wait of a read. `dead_after_seconds`: a consumer that has sent no command for this long
    counts as dead.
    """

    server: ClassVar[str] = "Redis"
    kind: ClassVar[str] = "stream"

    def __init__(self, url: str, options: ConsumerOptions, *, block_seconds: float, dead_after_seconds: float) -> None:
        self.name, self.dead_letter = options.stream, options.dead_letter
        self._options, self._dead_after_seconds = options, dead_after_seconds
        self.group = ConsumerGroup(
            url,
            options.stream,
            group=options.group,
            consumer=options.name,
            dead_letter=options.dead_letter,
            # A blocking read may take `block_seconds` before Redis responds.
            timeout=options.timeout + block_seconds,
        )
        self._take_over_at = time.monotonic()
        # The id of the last entry on the latest page of the search for idle entries; None if no search is under way.
        self._searched_until: str | None = None

    def check(self) -> None:
        self.group.check()

    def open(self) -> None:
        self.group.create()

    def read(self, seconds: float) -> Sequence[Entry]:
        return self.group.read(self._options.read_count, seconds)

    def seconds_until_due(self) -> float:
        return self._take_over_at - time.monotonic()

    def due_again(self) -> Iterator[Entry]:
        """Take over entries that have been idle for too long; only one page, so that new entries don't wait long."""
        idle_seconds, size = self._options.idle_seconds, self._options.batch
        page = self.group.idle_entries(self._searched_until, idle_seconds, size)
        yield from self._take_over(page, idle_seconds)
        if len(page) == size:
            self._searched_until = page[-1]
        else:
            self._searched_until = None
            self._take_over_at = time.monotonic() + min(idle_seconds / 4, TAKE_OVER_SECONDS)

    def keep(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Reset the idle time of the entries: another consumer takes over an entry that is idle for `idle_seconds`."""
        pending = self.group.reset_idle_time(entries)
        return [entry for entry in entries if entry.id in pending]

    def resume(self, entries: Iterable[Entry], seconds: float) -> Iterator[Entry]:
        # Only those that have been idle since they were settled: no other consumer has taken them over.
        return self._take_over([entry.id for entry in entries], seconds)

    def _take_over(self, ids: Iterable[str], idle_seconds: float) -> Iterator[Entry]:
        """Take over, one at a time, each entry that has been idle for at least `idle_seconds`."""
        for id in ids:
            entry = self.group.take_over(id, idle_seconds, self._options.max_deliveries)
            if entry is not None:
                yield entry

    def acknowledge(self, processed: Sequence[Entry], redelivered: Sequence[tuple[Entry, int]]) -> None:
        self.group.acknowledge(processed, redelivered)

    def park(self, entry: Entry, error: str) -> None:
        self.group.park(entry, error)

    def state(self) -> SourceState:
        return self.group.state()

    def clean_up(self) -> None:
        self.group.remove_idle_consumers(self._dead_after_seconds)

    def leave(self) -> None:
        self.group.leave()

    def close(self) -> None:
        self.group.close()
