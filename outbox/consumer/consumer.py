"""Run a consumer: read entries, process them, settle them, and take over entries of consumers that crashed.

To process an entry means to call its handlers; to settle it means to write the outcome to the source: the stream or
queue that it was read from (`source.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import ClassVar

from outbox.consumer import database_outage
from outbox.consumer.counts import Counts
from outbox.consumer.entry import Entry
from outbox.consumer.entry_outcome import EntryOutcome, Redeliver
from outbox.consumer.find_source import find_address, make_source
from outbox.consumer.options import DEFAULT_GROUP, ConsumerOptions, Intervals, unique_name
from outbox.consumer.process_entry import EntryProcessor
from outbox.consumer.settle import settle
from outbox.current_outbox import current
from outbox.destinations.handler import Handler
from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError, SettingsError, Unavailable, as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS

logger = logging.getLogger(__name__)

# How long one clean-up of the inbox may take.
CLEANUP_MOST_SECONDS = 10.0


class Consumer:
    """One of the consumers that share the entries of a stream or queue. It runs in the thread that calls `run`.

    `stream`: the name of a registered RedisStream, the key of a stream at `url`, or the name of a queue of RabbitMQ.
    `url`: the URL of the Redis, or of the RabbitMQ (`amqp://…`); by default the destination's, OUTBOX_CONSUME_URL, or
        OUTBOX_REDIS_URL.
    `group`: the consumer group of a stream. The consumers of a group share the entries; each group gets all entries.
    `name`: this consumer's name, unique in its group; by default made of host, process id and a random part.
    `batch`: the most entries to read at a time.
    `max_deliveries`: how often an entry is delivered before it is parked.
    `idle_seconds`: how long an entry waits, after it failed (or, in a stream, its consumer stopped responding), before
        it is delivered again.
    `dead_letter`: the stream or queue for parked entries; by default the name followed by `.dead`.
    `registry`: the handlers; by default those registered with `outbox.handler`.
    `timeout`: how many seconds the server may take to respond.

    The attribute `counts` counts what the consumer has done.
    """

    # A subclass may have others.
    intervals: ClassVar[Intervals] = Intervals()

    def __init__(
        self,
        stream: str,
        *,
        url: str | None = None,
        group: str = DEFAULT_GROUP,
        name: str | None = None,
        batch: int = 50,
        max_deliveries: int = 5,
        idle_seconds: float = 60.0,
        dead_letter: str | None = None,
        registry: Registry | None = None,
        timeout: float = 5.0,
    ) -> None:
        box = current()
        self._inbox = box.inbox
        self._reporter = box.reporter
        self._dialects = {box.dialect, box.inbox.dialect}
        self._registry = box.registry if registry is None else registry
        address = find_address(stream, url, self._registry, box.settings)
        self._options = options = ConsumerOptions(
            stream=address.key,
            group=group,
            name=unique_name() if name is None else name,
            dead_letter=f"{address.key}.dead" if dead_letter is None else dead_letter,
            batch=batch,
            max_deliveries=max_deliveries,
            idle_seconds=idle_seconds,
            timeout=timeout,
        )
        self._source = make_source(address, options, self.intervals, box.settings.max_payload_bytes)
        self.counts = Counts()
        self._processor = EntryProcessor(
            box.inbox,
            box.dialect,
            self._registry,
            max_deliveries=options.max_deliveries,
            max_payload_bytes=box.settings.max_payload_bytes,
            counts=self.counts,
        )
        self._source_is_unavailable = False
        self._report_at = time.monotonic()
        self._cleanup_at = self._report_at + self.intervals.cleanup_seconds
        self._last_report = ""

    def __repr__(self) -> str:
        return f"<Consumer {self._options.name!r} of {self._options.stream!r}>"  # no URL: it may contain a password

    def run(self, stopped: threading.Event) -> None:
        """Consume until `stopped` is set. Entries that were read before that are still processed."""
        self.check()
        self._source.open()
        logger.info("consuming %s as %s, group %s", self._options.stream, self._options.name, self._options.group)
        try:
            while not stopped.is_set():
                self._run_round(stopped)
            self._leave()
        finally:
            self._source.close()

    def check(self) -> None:
        """Raise an OutboxError if something is missing: handlers, the inbox's table, or the stream's server."""
        if not any(isinstance(each, Handler) for each in self._registry.destinations.values()):
            raise RegistrationError(
                "no handler is registered, so every entry would be acknowledged without being processed. Name the "
                "module that contains your @outbox.handler functions: "
                f"`outbox consume {self._options.stream} your.module`."
            )
        for each in self._registry.destinations.values():
            if isinstance(each, Handler) and each.is_async:
                raise RegistrationError(
                    f"{each.name} is an `async def` function, and a consumer calls its handlers in the transaction of "
                    "the inbox, on a blocking connection. Write a plain function for the consumer's module."
                )
        self._inbox.cleanup(seconds=0)  # raises an error if the inbox's table does not exist
        try:
            self._source.check()
        except Unavailable as error:
            where = f"{self._source.server} of the {self._source.kind} {self._source.name!r}"
            raise SettingsError(f"The {where} can't be used: {error}") from None

    def lag(self) -> int:
        """Return how many entries have not been delivered to a consumer yet (of the group, if it is a stream)."""
        return self._source.state().behind

    def _run_round(self, stopped: threading.Event) -> None:
        """Run one round. If the source is unavailable, log that once per outage, and pause."""
        try:
            self._round(stopped)
        except Unavailable as error:
            if not self._source_is_unavailable:
                logger.warning("%s: %s is unavailable, trying again: %s", *self._named, error)
            self._source_is_unavailable = True
            stopped.wait(self.intervals.source_retry_seconds)
        else:
            if self._source_is_unavailable:
                logger.info("%s: %s is available again", *self._named)
            self._source_is_unavailable = False

    def _round(self, stopped: threading.Event) -> None:
        """Process new entries. Then process those that are due again, report, and clean up, if each of these is due."""
        wait_seconds = min(self.intervals.block_seconds, max(0.0, self._source.seconds_until_due()))
        self._process(self._source.read(wait_seconds), stopped)
        if self._source.seconds_until_due() <= 0:
            self._process_each(self._source.due_again(), stopped)
        if time.monotonic() >= self._report_at:
            self._report()
        if time.monotonic() >= self._cleanup_at:
            self._clean_up()

    def _process(self, entries: Iterable[Entry], stopped: threading.Event) -> None:
        """Process entries one after the other, then settle them all."""
        outcomes: list[tuple[Entry, EntryOutcome]] = []
        remaining = self._one_by_one(entries)
        for entry in remaining:
            counted, outcome = self._processor.process(entry)
            outcomes.append((counted, outcome))
            if isinstance(outcome, Redeliver) and outcome.database_lost:
                self._wait_for_database(outcomes, list(remaining), stopped)
                return
        settle(self._source, outcomes, self.counts)

    def _one_by_one(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries, and keep those that have not been yielded yet from being given to another consumer."""
        waiting = deque(entries)
        keep_every = self._options.idle_seconds / 3
        keep_at = time.monotonic() + keep_every
        while waiting:
            yield waiting.popleft()
            if waiting and time.monotonic() >= keep_at:
                with contextlib.suppress(Unavailable):  # entries that were read are processed nevertheless
                    waiting = deque(self._source.keep(waiting))
                keep_at = time.monotonic() + keep_every

    def _wait_for_database(
        self,
        outcomes: list[tuple[Entry, EntryOutcome]],
        waiting: list[Entry],
        stopped: threading.Event,
    ) -> None:
        """Settle all entries, wait until the database is available again, and process the entries in `waiting`.

        In a long outage other consumers may get these entries. So before the wait, this consumer tells the source that
        it has not begun with them: otherwise their delivery to this consumer would count towards `max_deliveries`.
        """
        not_begun = [(entry, Redeliver("not begun", begun=False)) for entry in waiting]
        settle(self._source, [*outcomes, *not_begun], self.counts)
        settled_at = time.monotonic()
        retry_seconds = self.intervals.database_retry_seconds
        if database_outage.wait_until_over(self._dialects, stopped, retry_seconds):
            self._process_each(self._source.resume(waiting, time.monotonic() - settled_at), stopped)

    def _process_each(self, entries: Iterator[Entry], stopped: threading.Event) -> None:
        """Process and settle the entries one at a time, each before the next one is requested; stop early if `stopped`.

        So an entry that crashes its consumer does not affect the others.
        """
        while not stopped.is_set() and (entry := next(entries, None)) is not None:
            self._process([entry], stopped)

    @property
    def _named(self) -> tuple[str, str]:
        return self._source.name, self._source.server

    def _report(self) -> None:
        """Log the state of the source and the counts, if they have changed since the last report."""
        self._report_at = time.monotonic() + self.intervals.report_seconds
        state, options = self._source.state(), self._options
        self._reporter.stream = {
            "stream": options.stream,
            "group": options.group,
            "dead_letter": options.dead_letter,
            "kind": self._source.kind,
            "behind": state.behind,
            "pending": state.pending,
            "pending_is_own": state.pending_is_own,
            "processed": self.counts.processed,
            "parked": self.counts.parked,
        }
        report = f"{state}, {self.counts}"
        if report != self._last_report:
            self._last_report = report
            logger.info("%s: %s", self._options.stream, report)

    def _clean_up(self) -> None:
        """Remove dead consumers, and delete old rows of the inbox: a service that only consumes has no scheduler."""
        self._cleanup_at = time.monotonic() + self.intervals.cleanup_seconds
        self._source.clean_up()
        try:
            self._inbox.cleanup(seconds=CLEANUP_MOST_SECONDS)
        except CONNECTION_ERRORS as error:
            logger.warning(
                "could not clean up the inbox; the next try is in %g minutes: %s",
                self.intervals.cleanup_seconds / 60,
                as_sentence(error),
            )

    def _leave(self) -> None:
        """Log a last report, even if nothing has changed, and leave the source."""
        self._last_report = ""
        try:
            self._report()
            self._source.leave()
        except Unavailable as error:
            text = "%s: %s is unavailable, so this consumer could not say that it leaves: %s"
            logger.warning(text, *self._named, error)
