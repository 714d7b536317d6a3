"""A producer of Kafka that publishes batches and collects the delivery reports.

confluent-kafka (librdkafka) is an optional dependency. Its producer is safe for threads, keeps its connections by
itself, and calls a function for each message that a broker has stored or refused. A thread waits for these reports.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from outbox.errors import describe
from outbox.text import visible

logger = logging.getLogger(__name__)

# How long the thread waits for reports before it looks whether it is to stop.
POLL_SECONDS = 0.2
# How long a close may take.
CLOSE_SECONDS = 2.0
# For how long an error that librdkafka has reported may explain another one.
RECENT_SECONDS = 60.0

# How long a line of librdkafka is not logged again, and how many kinds of lines are remembered for that.
REPEATED_SECONDS = 60.0
MOST_KINDS = 100

_NUMBER = re.compile(r"\d+")
_SETTING = re.compile(r'property:? \\?"([\w.]+)')


@dataclass(frozen=True, slots=True)
class Publication:
    """A message, and the topic that it is published to."""

    topic: str
    key: bytes | None
    body: bytes
    headers: list[tuple[str, str | bytes | None]]


class ProducerQueueFull(Exception):
    """The producer holds as many messages as it may (`queue.buffering.max.messages`): the brokers are slow or down."""


class Reports:
    """The delivery reports of one batch: None for a message that is stored, or its error, by place in the batch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._expected = 0
        self.results: dict[int, Exception | None] = {}

    def expect(self) -> None:
        with self._changed:
            self._expected += 1

    def forget(self) -> None:
        """Expect one report less: the message was refused before it was sent."""
        with self._changed:
            self._expected -= 1

    def report(self, place: int, error: KafkaError | None, message: object) -> None:
        """Take note of a report; librdkafka's producer calls this in the thread that polls."""
        with self._changed:
            self.results[place] = None if error is None else KafkaException(error)
            self._expected -= 1
            if self._expected <= 0:
                self._changed.notify_all()

    def wait(self, ends_at: float) -> dict[int, Exception | None]:
        """Return the results, when there is a report for each message or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._expected <= 0, max(0.0, ends_at - time.monotonic()))
            return dict(self.results)


class KafkaConnection:
    """A producer and the thread that waits for its reports. `publish` may be called by several threads at a time."""

    def __init__(self, config: Mapping[str, Any], name: str, seconds: float, log: ProducerLog) -> None:
        # What librdkafka reported last: a report often says only that a message has timed out, and not why.
        self._last_error, self._last_error_at = "", 0.0
        self._is_fatal = False
        self._stopped = threading.Event()
        self._producer = _make_producer({**config, "error_cb": self._on_error}, log)
        self._thread = threading.Thread(target=self._poll, name=f"outbox-kafka-{name}", daemon=True)
        self._thread.start()
        try:
            self._producer.list_topics(timeout=seconds)
        except KafkaException as error:
            self.close()
            raise Unreachable(self.explained(error)) from None

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._producer.poll(POLL_SECONDS)

    def _on_error(self, error: KafkaError) -> None:
        self._is_fatal = self._is_fatal or error.fatal()
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._last_error:
            return  # the error before it says why
        self._last_error, self._last_error_at = f"{error.name()}: {error.str()}", time.monotonic()

    @property
    def is_open(self) -> bool:
        """Return whether the producer can still be used. After a fatal error it refuses every message."""
        return not self._is_fatal and not self._stopped.is_set()

    def publish(self, batch: Sequence[Publication], seconds: float) -> dict[int, Exception | None]:
        """Publish the batch; return the result of each message that has one within this many seconds."""
        ends_at = time.monotonic() + seconds
        reports = Reports()
        refused: dict[int, Exception | None] = {}
        for place, each in enumerate(batch):
            reports.expect()
            try:
                self._producer.produce(
                    each.topic, each.body, each.key, headers=each.headers, on_delivery=partial(reports.report, place)
                )
            except BufferError as error:
                refused[place] = ProducerQueueFull(describe(error))
            except Exception as error:  # of this message only
                refused[place] = error
        for _ in refused:
            reports.forget()
        return reports.wait(ends_at) | refused

    def explained(self, error: Exception) -> str:
        """Return the error as text, with what librdkafka reported last, if that is something else."""
        text, last = text_of(error), self._last_error
        is_old = time.monotonic() - self._last_error_at > RECENT_SECONDS
        return text if is_old or last in text else f"{text}; last error: {last}"

    def close(self) -> None:
        """Give up the messages in flight, and end the thread."""
        self._stopped.set()
        with contextlib.suppress(Exception):
            self._producer.purge()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)


class ProducerLog:
    """Takes the log lines of librdkafka, which may quote the value of a setting, and logs them without secrets.

    While a broker is down, librdkafka logs the same twenty times a second. Lines that differ from an earlier one only
    in their numbers are logged at DEBUG for REPEATED_SECONDS.
    """

    def __init__(self, redact: Callable[[str], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._redact, self._clock = redact, clock
        self._logged_at: dict[str, float] = {}

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line; librdkafka's producer calls this in the thread that polls."""
        text = visible(self._redact(message % args if args else message))
        logger.log(min(level, logging.DEBUG) if self._is_repeated(text) else level, "%s", text)

    def _is_repeated(self, text: str) -> bool:
        kind, now = _NUMBER.sub("", text), self._clock()
        if now - self._logged_at.get(kind, -REPEATED_SECONDS) < REPEATED_SECONDS:
            return True
        if len(self._logged_at) >= MOST_KINDS:
            self._logged_at.clear()
        self._logged_at[kind] = now
        return False


class Unreachable(Exception):
    """No broker has responded, or librdkafka refuses a setting."""


def _make_producer(config: dict[str, Any], log: ProducerLog) -> Producer:
    """Return a producer. librdkafka's message about a wrong setting is left out: it may quote a password."""
    try:
        return Producer(config, logger=log)
    except (KafkaException, TypeError, ValueError) as error:
        found = _SETTING.search(str(error))
        which = "a setting" if found is None else f"the setting {found[1]}"
        raise Unreachable(f"librdkafka refuses {which} in `config`, or its value") from None


def text_of(error: Exception) -> str:
    """Return a KafkaException as `NAME: text`; any other error as usual."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return f"{found.name()}: {found.str()}" if isinstance(found, KafkaError) else describe(error)


def is_refused(error: Exception) -> bool:
    """Return whether a broker, or the producer, will never take this message, or the batch that it was in."""
    return kind_of(error) == "failed"


def kind_of(error: Exception) -> str:
    """Return whether the error is about the message ("failed"), the topic ("retry"), or neither ("unavailable")."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if not isinstance(found, KafkaError):
        return "unavailable" if isinstance(error, ProducerQueueFull) else "retry"
    if found.code() in ABOUT_THE_MESSAGE:
        return "failed"
    return "retry" if found.code() in ABOUT_THE_TOPIC else "unavailable"


# A broker, or the producer itself, will never take such a message.
ABOUT_THE_MESSAGE = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_TIMESTAMP, KafkaError._INVALID_ARG,
    )
)  # fmt: skip
# The topic does not exist, or this user may not write to it; other topics can be written to.
ABOUT_THE_TOPIC = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    )
)  # fmt: skip
