"""`Bus`: the base class of a destination that is a message broker.

It is for brokers that take many messages at a time and confirm each of them: `outbox.Rabbit`, `outbox.Nats` and
`outbox.Kafka` are subclasses, and an application may write one for another broker.

The events of an ordering key reach a destination one after the other (`delivery/key_order.py`): the next one is passed
to `publish` when the one before it is confirmed. So `publish` never gets two events of one key.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, TypeVar

from outbox.buses.shared_connection import SharedConnection
from outbox.destinations.event_filter import check_event_filter
from outbox.destinations.limits import Limits
from outbox.destinations.order_policy import OnFailed, check_order_policy
from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import RegistrationError, Reject, RetryLater, SettingsError, Unavailable, describe
from outbox.events.event import Event
from outbox.webhooks.redaction import Redaction

Connection = TypeVar("Connection")

TIMEOUT = 10.0


class Bus(ABC, Generic[Connection]):
    """A message broker as a destination. A subclass says how to connect, and how to publish a batch.

    - `name`: the destination's name; the progress of events is stored under it, so it must not change.
    - `events`: the event types to publish: patterns such as "user.created", "user.*" or "*".
    - `replaces`: the name, or the names, of destinations that this one replaces.
    - `concurrency`: how many batches may be published at the same time; see `outbox.Limits`.
    - `per_second`: how many events may be published per second; see `outbox.Limits`.
    - `ordered`: whether it gets the events of an ordering key in order.
    - `on_failed`: whether later events of an ordering key wait behind one that has failed: "block" or "skip".
    - `timeout`: how many seconds a batch may take, from connecting to the last confirmation.
    """

    # Errors of `publish` that mean that the broker can't be reached. Any error of `connect` means that.
    unavailable_errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)

    def __init__(
        self,
        name: str,
        *,
        events: Sequence[str] = ("*",),
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
        ordered: bool = True,
        on_failed: OnFailed = "block",
        timeout: float = TIMEOUT,
    ) -> None:
        _check(type(self).__name__, name, timeout)
        self.name = name
        self.limits = Limits(concurrency, per_second)
        self.events = check_event_filter(events)
        self.replaces = replaces
        check_order_policy(name, ordered, on_failed)
        self.ordered, self.on_failed = ordered, on_failed
        self.timeout = float(timeout)
        self._shared: SharedConnection[Connection] = SharedConnection(self.connect, self.disconnect, self.is_open)
        self._redaction: Redaction | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"  # no address: it may contain a password

    @abstractmethod
    def connect(self, seconds: float) -> Connection:
        """Open a connection within this many seconds, or raise an error.

        All threads of the process use it, also at the same time. A forked child opens its own.
        """

    @abstractmethod
    def publish(
        self, connection: Connection, events: Sequence[Event], seconds: float
    ) -> Iterable[tuple[Event, Outcome]]:
        """Publish the events, and return an outcome for each that the broker has confirmed or refused.

        Events without an outcome count as unconfirmed: they are `Unavailable`, and the connection is closed. That is
        also so if an error is raised: it is `Unavailable` for the types in `unavailable_errors`, otherwise `Retry`.
        `seconds` is how long the confirmations may take.
        """

    def disconnect(self, connection: Connection) -> None:
        """Close a connection. By default, call its method `close`, if it has one."""
        close = getattr(connection, "close", None)
        if close is not None:
            close()

    def is_open(self, connection: Connection) -> bool:
        """Return whether a connection that was opened earlier can still be used."""
        return True

    def secrets(self) -> Iterable[str]:
        """Return the texts that must not appear in errors, such as passwords. By default, there are none."""
        return ()

    def check(self) -> None:
        """Raise an error unless the broker can be reached, and can be used. `outbox doctor` calls it."""
        ends_at = time.monotonic() + self.timeout
        try:
            connection = self._shared.get(ends_at)
            self.check_connection(connection, max(0.0, ends_at - time.monotonic()))
        except Exception as error:
            text = describe(error)
            shown = self._redact(text)
            if shown == text:
                raise
            raise Unavailable(shown) from None

    def check_connection(self, connection: Connection, seconds: float) -> None:
        """Raise an error if events can't be published, within so many seconds. By default, nothing is checked."""

    def close(self) -> None:
        """Close the connection. That also happens when the process ends."""
        self._shared.close()

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Publish all events, and yield each with its outcome. An error has `***` in the place of `secrets`."""
        for event, outcome in self._deliver(events, lease):
            yield event, self._without_secrets(outcome)

    def _deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        unconfirmed = dict.fromkeys(events)
        if not unconfirmed:
            return
        seconds = min(self.timeout, lease.seconds_left)
        ends_at = time.monotonic() + seconds
        try:
            connection = self._shared.get(ends_at)
        except Exception as error:
            missing: Outcome = Unavailable(f"could not connect: {describe(error)}")
        else:
            missing = Unavailable(f"not confirmed within {seconds:.3g} s")
            try:
                batch = list(unconfirmed)
                for event, outcome in self.publish(connection, batch, max(0.0, ends_at - time.monotonic())):
                    unconfirmed.pop(event, None)
                    yield event, outcome
            except Exception as error:
                missing = self._outcome_of(error)
            if unconfirmed:
                self._shared.discard(connection)
        for event in unconfirmed:
            yield event, missing

    def _outcome_of(self, error: Exception) -> Outcome:
        """Return the outcome of the unconfirmed events, for which `publish` raised this error."""
        match error:
            case Unavailable():
                return error
            case Reject():
                return Failed(describe(error))
            case RetryLater():
                return Retry(str(error), error.after)
        if isinstance(error, self.unavailable_errors):
            return Unavailable(describe(error))
        return Retry(describe(error))

    def _without_secrets(self, outcome: Outcome) -> Outcome:
        """Return the outcome with an error that can be stored, shown and logged."""
        match outcome:
            case Delivered():
                return outcome
            case Unavailable():
                shown = self._redact(outcome.error)
                if shown != outcome.error:
                    outcome.error, outcome.args = shown, (shown,)
                return outcome
        return replace(outcome, error=self._redact(outcome.error))

    def _redact(self, text: str) -> str:
        if self._redaction is None:  # not in `__init__`, where a subclass does not know its secrets yet
            self._redaction = Redaction(self.secrets())
        return self._redaction.redact(text)


def _check(kind: str, name: object, timeout: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise RegistrationError(f"The name of a {kind} must be text that is not empty, not {name!r}.")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
        raise RegistrationError(f"timeout must be a number of seconds greater than 0, not {timeout!r}.")


def missing_library(package: str, extra: str) -> SettingsError:
    """Return the error for a client library that is not installed."""
    return SettingsError(f"{package} is not installed: pip install 'dramatiq-outbox[{extra}]'")
