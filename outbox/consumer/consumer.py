"""Run a consumer: read entries, process them, settle them, and take over entries of consumers that crashed.

To process an entry means to call its handlers; to settle it means to write the outcome to Redis.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from outbox.consumer import database_outage
from outbox.consumer.counts import Counts
from outbox.consumer.entry_outcome import EntryOutcome, Redeliver
from outbox.consumer.options import ConsumerOptions, unique_name
from outbox.consumer.process_entry import EntryProcessor
from outbox.consumer.settle import settle
from outbox.consumer.stream_entry import StreamEntry
from outbox.consumer.stream_source import find_stream
from outbox.current_outbox import current
from outbox.destinations.handler import Handler
from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError, SettingsError, Unavailable
from outbox.storage.connection_errors import CONNECTION_ERRORS

logger = logging.getLogger(__name__)

# The longest time between two searches for entries to take over.
TAKE_OVER_SECONDS = 5.0
# How long one clean-up of the inbox may take.
CLEANUP_MOST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """The timeouts and intervals of a consumer."""

    # The longest wait for a new entry. Stopping a consumer may take this long.
    block_seconds: float = 1.0
    # How long to wait before Redis or the database is tried again.
    redis_retry_seconds: float = 0.5
    database_retry_seconds: float = database_outage.RETRY_SECONDS
    report_seconds: float = 10.0
    cleanup_seconds: float = 3600.0
    # A consumer that has sent no Redis command for this long counts as dead. A running consumer sends one every
    # `block_seconds`, unless a handler takes longer.
    dead_after_seconds: float = 3600.0


class Consumer:
    """One of the consumers that share the entries of a stream. It runs in the thread that calls `run`.

    `stream`: the name of a registered RedisStream, or the key of a stream at `url`.
    `url`: the URL of the stream's Redis; by default the destination's, or OUTBOX_REDIS_URL.
    `group`: the consumer group. The consumers of a group share the entries; each group gets all entries.
    `name`: this consumer's name, unique in its group; by default made of host, process id and a random part.
    `batch`: the most entries to read at a time.
    `max_deliveries`: how often an entry is delivered before it is moved to the dead-letter stream.
    `idle_seconds`: how long an entry stays pending, after it failed or its consumer stopped responding, before it is
        delivered again to any consumer of the group.
    `dead_letter`: the key of the dead-letter stream; by default the stream's key followed by `.dead`.
    `registry`: the handlers; by default those registered with `outbox.handler`.
    `timeout`: how many seconds Redis may take to respond.

    The attribute `tally` counts what the consumer has done.
    """

    # A subclass may have others.
    intervals: ClassVar[Intervals] = Intervals()

    def __init__(
        self,
        stream: str,
        *,
        url: str | None = None,
        group: str = "outbox",
        name: str | None = None,
        batch: int = 50,
        max_deliveries: int = 5,
        idle_seconds: float = 60.0,
        dead_letter: str | None = None,
        registry: Registry | None = None,
        timeout: float = 5.0,
    ) -> None:
        from outbox.consumer.consumer_group import ConsumerGroup  # redis is an optional dependency

        box = current()
        self._inbox = box.inbox
        self._dialects = {box.dialect, box.inbox.dialect}
        self._registry = box.registry if registry is None else registry
        source = find_stream(stream, url, self._registry, box.settings.redis_url)
        self._options = options = ConsumerOptions(
            stream=source.key,
            group=group,
            name=unique_name() if name is None else name,
            dead_letter=f"{source.key}.dead" if dead_letter is None else dead_letter,
            batch=batch,
            max_deliveries=max_deliveries,
            idle_seconds=idle_seconds,
            timeout=timeout,
        )
        self._group = ConsumerGroup(
            source.url,
            options.stream,
            group=options.group,
            consumer=options.name,
            dead_letter=options.dead_letter,
            # A blocking read may take `block_seconds` before Redis responds.
            timeout=options.timeout + self.intervals.block_seconds,
        )
        self.tally = Counts()
        self._processor = EntryProcessor(
            box.inbox, box.dialect, self._registry, max_deliveries=options.max_deliveries, counts=self.tally
        )
        self._redis_is_unavailable = False
        self._take_over_at = self._report_at = time.monotonic()
        self._cleanup_at = self._take_over_at + self.intervals.cleanup_seconds
        # The id of the last entry on the latest page of the search for idle entries; None if no search is under way.
        self._searched_until: str | None = None
        self._last_report = ""

    def __repr__(self) -> str:
        return f"<Consumer {self._options.name!r} of {self._options.stream!r}>"  # no URL: it may contain a password

    def run(self, stopped: threading.Event) -> None:
        """Consume until `stopped` is set. Entries that were read before that are still processed."""
        self.check()
        self._group.create()
        logger.info("consuming %s as %s, group %s", self._options.stream, self._options.name, self._options.group)
        try:
            while not stopped.is_set():
                self._run_round(stopped)
            self._leave()
        finally:
            self._group.close()

    def check(self) -> None:
        """Raise an OutboxError if something is missing: handlers, the inbox's table, or Redis."""
        if not any(isinstance(each, Handler) for each in self._registry.destinations.values()):
            raise RegistrationError(
                "no handler is registered, so every entry would be acknowledged without being processed. Name the "
                "module that contains your @outbox.handler functions: "
                f"`outbox consume {self._options.stream} your.module`."
            )
        self._inbox.cleanup(seconds=0)  # raises an error if the inbox's table does not exist
        try:
            self._group.check()
        except Unavailable as error:
            raise SettingsError(f"The Redis of the stream {self._options.stream!r} can't be used: {error}") from None

    def lag(self) -> int:
        """Return how many entries have not been delivered to a consumer of the group yet."""
        return self._group.state().behind

    def _run_round(self, stopped: threading.Event) -> None:
        """Run one round. If Redis is unavailable, log that once per outage, and pause."""
        try:
            self._round(stopped)
        except Unavailable as error:
            if not self._redis_is_unavailable:
                logger.warning("%s: Redis is unavailable, trying again: %s", self._options.stream, error)
            self._redis_is_unavailable = True
            stopped.wait(self.intervals.redis_retry_seconds)
        else:
            if self._redis_is_unavailable:
                logger.info("%s: Redis is available again", self._options.stream)
            self._redis_is_unavailable = False

    def _round(self, stopped: threading.Event) -> None:
        """Process new entries. Then take over idle entries, report, and clean up, if each of these is due."""
        wait_seconds = min(self.intervals.block_seconds, max(0.0, self._take_over_at - time.monotonic()))
        self._process(self._group.read(self._options.read_count, wait_seconds), stopped)
        if time.monotonic() >= self._take_over_at:
            self._take_over_idle_entries(stopped)
        if time.monotonic() >= self._report_at:
            self._report()
        if time.monotonic() >= self._cleanup_at:
            self._clean_up()

    def _process(self, entries: Iterable[StreamEntry], stopped: threading.Event) -> None:
        """Process entries one after the other, then settle them all."""
        outcomes: list[tuple[StreamEntry, EntryOutcome]] = []
        remaining = self._one_by_one(entries)
        for entry in remaining:
            outcome = self._processor.process(entry)
            outcomes.append((entry, outcome))
            if isinstance(outcome, Redeliver) and outcome.database_lost:
                self._wait_for_database(outcomes, list(remaining), stopped)
                return
        settle(self._group, outcomes, self.tally)

    def _one_by_one(self, entries: Iterable[StreamEntry]) -> Iterator[StreamEntry]:
        """Yield the entries, and keep those that have not been yielded yet from being taken over.

        Another consumer takes over an entry that has been idle for `idle_seconds`. So their idle time is reset in Redis
        before that.
        """
        waiting = deque(entries)
        reset_every = self._options.idle_seconds / 3
        reset_at = time.monotonic() + reset_every
        while waiting:
            yield waiting.popleft()
            if waiting and time.monotonic() >= reset_at:
                waiting = self._still_pending(waiting)
                reset_at = time.monotonic() + reset_every

    def _still_pending(self, waiting: deque[StreamEntry]) -> deque[StreamEntry]:
        """Reset the idle time of the entries; return those that no other consumer has processed."""
        try:
            pending = self._group.reset_idle_time(waiting)
        except Unavailable:
            return waiting  # entries that were read are processed even if Redis is unavailable
        return deque(entry for entry in waiting if entry.id in pending)

    def _wait_for_database(
        self,
        outcomes: list[tuple[StreamEntry, EntryOutcome]],
        waiting: list[StreamEntry],
        stopped: threading.Event,
    ) -> None:
        """Settle all entries, wait until the database is available again, and process the entries in `waiting`.

        In a long outage other consumers take these entries over. So before the wait, this consumer tells Redis that it
        has not begun with them: otherwise their delivery to this consumer would count towards `max_deliveries`.
        """
        not_begun = [(entry, Redeliver("not begun", begun=False)) for entry in waiting]
        settle(self._group, [*outcomes, *not_begun], self.tally)
        settled_at = time.monotonic()
        retry_seconds = self.intervals.database_retry_seconds
        if database_outage.wait_until_over(self._dialects, stopped, retry_seconds):
            # Only those that have been idle since they were settled: no other consumer has taken them over.
            self._take_over([entry.id for entry in waiting], time.monotonic() - settled_at, stopped)

    def _take_over_idle_entries(self, stopped: threading.Event) -> None:
        """Take over entries that have been idle for too long; only one page, so that new entries don't wait long."""
        idle_seconds, size = self._options.idle_seconds, self._options.batch
        page = self._group.idle_entries(self._searched_until, idle_seconds, size)
        self._take_over(page, idle_seconds, stopped)
        if len(page) == size:
            self._searched_until = page[-1]
        else:
            self._searched_until = None
            self._take_over_at = time.monotonic() + min(idle_seconds / 4, TAKE_OVER_SECONDS)

    def _take_over(self, ids: Iterable[str], idle_seconds: float, stopped: threading.Event) -> None:
        """Take over and process, one at a time, each entry that has been idle for at least `idle_seconds`."""
        for id in ids:
            if stopped.is_set():
                return
            entry = self._group.take_over(id, idle_seconds, self._options.max_deliveries)
            if entry is not None:
                self._process([entry], stopped)

    def _report(self) -> None:
        """Log the state of the group and the counts, if they have changed since the last report."""
        self._report_at = time.monotonic() + self.intervals.report_seconds
        report = f"{self._group.state()}, {self.tally}"
        if report != self._last_report:
            self._last_report = report
            logger.info("%s: %s", self._options.stream, report)

    def _clean_up(self) -> None:
        """Remove dead consumers, and delete old rows of the inbox: a service that only consumes has no scheduler."""
        self._cleanup_at = time.monotonic() + self.intervals.cleanup_seconds
        self._group.remove_idle_consumers(self.intervals.dead_after_seconds)
        try:
            self._inbox.cleanup(seconds=CLEANUP_MOST_SECONDS)
        except CONNECTION_ERRORS as error:
            logger.warning(
                "could not clean up the inbox; the next try is in %g minutes: %s",
                self.intervals.cleanup_seconds / 60,
                str(error).strip(),
            )

    def _leave(self) -> None:
        """Log a last report, even if nothing has changed, and leave the group."""
        self._last_report = ""
        try:
            self._report()
            self._group.leave()
        except Unavailable as error:
            logger.warning(
                "%s: Redis is unavailable, so this consumer could not leave its group: %s", self._options.stream, error
            )
