"""The consumer: read → attempt → settle, and now and then a look for what others have left."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from outbox.consumer import database_outage as outage
from outbox.consumer.counts import Counts
from outbox.consumer.entry_outcome import EntryOutcome, Redeliver
from outbox.consumer.options import ConsumerOptions, unique_name
from outbox.consumer.process_entry import EntryProcessor
from outbox.consumer.settle import settle
from outbox.consumer.stream_entry import StreamEntry
from outbox.consumer.stream_source import find
from outbox.current_outbox import current
from outbox.destinations.handler import Handler
from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError, SettingsError, Unavailable
from outbox.storage.connection_errors import CONNECTION_ERRORS

logger = logging.getLogger("outbox")

# The longest wait for a new entry: so long can a stop take.
BLOCK_SECONDS = 1.0
# The longest time between two looks for what was left.
LOOK_SECONDS = 5.0
# Before Redis is tried again.
PAUSE_SECONDS = 0.5
REPORT_SECONDS = 10.0
CLEANUP_SECONDS = 3600.0
CLEANUP_TAKES_SECONDS = 10.0
# One that lives is heard of at least every BLOCK_SECONDS, but for as long as a handler takes.
SILENT_SECONDS = 3600.0


class Consumer:
    """One of the consumers that share a stream's entries; it works in the thread that runs it.

    `stream` is the name of a registered RedisStream, or a stream's key at `url` (OUTBOX_REDIS_URL by default). An entry
    comes again, to any consumer of the group, when nothing was heard of it for `idle_seconds`, and is moved to the
    stream `dead_letter` after `max_deliveries`. `timeout` is how many seconds Redis may take to answer.
    """

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
        from outbox.consumer.consumer_group import ConsumerGroup  # redis is an extra

        self._box = box = current()
        self._registry = box.registry if registry is None else registry
        source = find(stream, url, self._registry, box.settings.redis_url)
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
            timeout=options.timeout + BLOCK_SECONDS,  # a blocking read is answered when it is over
        )
        self.tally = Counts()
        self._attempts = EntryProcessor(box, self._registry, options.max_deliveries, self.tally)
        self._redis_is_lost = False
        self._look_at = self._report_at = time.monotonic()
        self._cleanup_at = self._look_at + CLEANUP_SECONDS
        # How far a look has come, if it isn't at its end.
        self._looked_until: str | None = None
        self._reported = ""

    def __repr__(self) -> str:
        return f"<Consumer {self._options.name!r} of {self._options.stream!r}>"  # the URL may hold a password

    def run(self, stopped: threading.Event) -> None:
        """Consume until `stopped` is set; what was fetched by then is finished."""
        self.check()
        self._group.create()
        logger.info("consuming %s as %s, group %s", self._options.stream, self._options.name, self._options.group)
        try:
            while not stopped.is_set():
                self._try_round(stopped)
            self._leave()
        finally:
            self._group.close()

    def check(self) -> None:
        """Raise an OutboxError that says what is missing: handlers, the inbox's table, Redis."""
        if not any(isinstance(each, Handler) for each in self._registry.destinations.values()):
            raise RegistrationError(
                "no handler is registered, so every entry would be acknowledged and nothing done. Name the module that "
                f"holds your @outbox.handler functions: `outbox consume {self._options.stream} your.module`."
            )
        self._box.inbox.cleanup(seconds=0)
        try:
            self._group.check()
        except Unavailable as error:
            raise SettingsError(f"The Redis of the stream {self._options.stream!r} can't be used: {error}") from None

    def lag(self) -> int:
        """How many entries nobody in the group has been given yet."""
        return self._group.state().behind

    def _try_round(self, stopped: threading.Event) -> None:
        try:
            self._round(stopped)
        except Unavailable as error:
            if not self._redis_is_lost:
                logger.warning("%s: Redis can't be used, trying again: %s", self._options.stream, error)
            self._redis_is_lost = True
            stopped.wait(PAUSE_SECONDS)
        else:
            if self._redis_is_lost:
                logger.info("%s: Redis is back", self._options.stream)
            self._redis_is_lost = False

    def _round(self, stopped: threading.Event) -> None:
        wait_seconds = min(BLOCK_SECONDS, max(0.0, self._look_at - time.monotonic()))
        self._work_on(self._group.read(self._options.fetched, wait_seconds), stopped)
        if time.monotonic() >= self._look_at:
            self._look(stopped)
        if time.monotonic() >= self._report_at:
            self._report()
        if time.monotonic() >= self._cleanup_at:
            self._clean_up()

    def _look(self, stopped: threading.Event) -> None:
        """Take over what has been pending for too long: a page of it, so that new entries need not wait for all."""
        idle_seconds, size = self._options.idle_seconds, self._options.batch
        page = self._group.silent(self._looked_until, idle_seconds, size)
        self._take_over(page, idle_seconds, stopped)
        if len(page) == size:
            self._looked_until = page[-1]
        else:
            self._looked_until = None
            self._look_at = time.monotonic() + min(idle_seconds / 4, LOOK_SECONDS)

    def _work_on(self, entries: Iterable[StreamEntry], stopped: threading.Event) -> None:
        fates: list[tuple[StreamEntry, EntryOutcome]] = []
        turns = self._in_turn(entries)
        for entry in turns:
            fate = self._attempts.attempt(entry)
            fates.append((entry, fate))
            if isinstance(fate, Redeliver) and fate.lost:
                self._sit_out(fates, list(turns), stopped)
                return
        settle(self._group, fates, self.tally)

    def _sit_out(
        self, fates: list[tuple[StreamEntry, EntryOutcome]], waiting: list[StreamEntry], stopped: threading.Event
    ) -> None:
        """Wait for the database, then go on with what nobody has taken over.

        Redis is told first: to the others an outage that lasts would look like a consumer's death, and count.
        """
        not_begun = [(entry, Redeliver("not begun", begun=False)) for entry in waiting]
        settle(self._group, [*fates, *not_begun], self.tally)
        told_at = time.monotonic()
        if outage.is_over(self._box, stopped):
            self._take_over([entry.id for entry in waiting], time.monotonic() - told_at, stopped)

    def _take_over(self, ids: Iterable[str], silent_seconds: float, stopped: threading.Event) -> None:
        for id in ids:
            if stopped.is_set():
                return
            entry = self._group.take_over(id, silent_seconds, self._options.max_deliveries)
            if entry is not None:
                self._work_on([entry], stopped)

    def _in_turn(self, entries: Iterable[StreamEntry]) -> Iterator[StreamEntry]:
        """One after the other; those that wait long for their turn stay this consumer's meanwhile."""
        waiting = deque(entries)
        keep_every = self._options.idle_seconds / 3
        keep_at = time.monotonic() + keep_every
        while waiting:
            yield waiting.popleft()
            if waiting and time.monotonic() >= keep_at:
                waiting = self._kept(waiting)
                keep_at = time.monotonic() + keep_every

    def _kept(self, waiting: deque[StreamEntry]) -> deque[StreamEntry]:
        """But for those that another has taken over and done."""
        try:
            kept = self._group.keep(waiting)
        except Unavailable:
            return waiting  # what was fetched is finished
        return deque(entry for entry in waiting if entry.id in kept)

    def _report(self) -> None:
        """What is new: an idle consumer is quiet, one that falls behind is not."""
        self._report_at = time.monotonic() + REPORT_SECONDS
        news = f"{self._group.state()}, {self.tally}"
        if news != self._reported:
            self._reported = news
            logger.info("%s: %s", self._options.stream, news)

    def _clean_up(self) -> None:
        """A consumer may run where there is no scheduler."""
        self._cleanup_at = time.monotonic() + CLEANUP_SECONDS
        self._group.remove_silent(SILENT_SECONDS)
        try:
            self._box.inbox.cleanup(seconds=CLEANUP_TAKES_SECONDS)
        except CONNECTION_ERRORS as error:
            logger.warning("the inbox could not be cleaned up: %s", str(error).strip())

    def _leave(self) -> None:
        """Say how far it is, in any case, and go."""
        self._reported = ""
        try:
            self._report()
            self._group.leave()
        except Unavailable as error:
            logger.warning("%s: Redis can't be used at the end: %s", self._options.stream, error)
