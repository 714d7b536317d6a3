"""A Redis stream as a destination: each event is added as an entry, and a batch is sent in one round trip.

The fields of an entry, all in UTF-8; a field that the event does not have is left out:

    id                             the event's id, the same in every attempt; consumers recognise duplicates by it,
                                   which a crash or a lost reply can cause
    type                           the event type
    aggregate_type, aggregate_id   what the event is about
    time                           when it was emitted, in ISO 8601
    tenant_id, correlation_id
    headers                        a JSON object
    data                           the payload, a JSON object, in the bytes that were stored

`outbox.consumer` reads such entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from outbox.destinations.event_filter import check_event_filter
from outbox.destinations.limits import Limits
from outbox.destinations.name_template import NameTemplate
from outbox.destinations.order_policy import OnFailed, check_order_policy
from outbox.destinations.outcome import Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import RegistrationError, SettingsError, describe
from outbox.events.envelope import text_attributes
from outbox.events.event import Event

TIMEOUT = 5.0
# With a timeout of 0 a socket would not wait at all.
SHORTEST_TIMEOUT = 0.05


class RedisStream:
    """Adds each event to a stream. The stream may depend on the event: `stream="events.{aggregate_type}"`.

    With `maxlen`, Redis keeps about this many entries: it drops the oldest ones, even if they were not read. `timeout`:
    how many seconds Redis may take to reply. `replaces`: the name, or the names, of destinations that it replaces.

    `ordered`: whether it gets the events of an ordering key in order. `on_failed`: whether later events of the key wait
    behind one that has failed ("block"), or not ("skip").
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        stream: str = "events",
        maxlen: int | None = None,
        events: Sequence[str] = ("*",),
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
        ordered: bool = True,
        on_failed: OnFailed = "block",
        timeout: float = TIMEOUT,
    ) -> None:
        _check(name, maxlen, timeout)
        self.name = name
        self.limits = Limits(concurrency, per_second)
        self.events = check_event_filter(events)
        self.replaces = replaces
        check_order_policy(name, ordered, on_failed)
        self.ordered, self.on_failed = ordered, on_failed
        self._stream = NameTemplate(stream, "stream")
        self._trim = () if maxlen is None else ("MAXLEN", "~", str(maxlen))
        self._timeout = float(timeout)
        self._url = url
        self._client = _make_client(url, self._timeout)

    def __repr__(self) -> str:
        return f"<RedisStream {self.name!r} to {self._stream.text!r}>"  # the URL may hold a password

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Add all events in one round trip; yield each event's outcome."""
        from outbox.destinations.redis_commands import execute, packed  # redis is an optional dependency

        sent, commands = [], []
        for event in list(events):
            try:
                stream, entry = self._stream.render(event), fields(event)
                command = packed("XADD", stream, *self._trim, "*", *chain.from_iterable(entry.items()))
            except Exception as error:  # an invalid event must not stop the others
                yield event, Retry(describe(error))
            else:
                commands.append(command)
                sent.append(event)
        if not sent:
            return
        with self._client_within(lease) as client:
            outcomes = execute(client, commands)
        yield from zip(sent, outcomes, strict=True)

    @contextmanager
    def _client_within(self, lease: Lease) -> Iterator[Any]:
        """Yield a client whose timeout is no longer than the rest of the lease."""
        seconds = max(SHORTEST_TIMEOUT, lease.seconds_left)
        if seconds >= self._timeout:
            yield self._client
        else:
            with _make_client(self._url, seconds) as client:
                yield client


def fields(event: Event) -> dict[str, bytes]:
    """Return the fields of the entry for an event."""
    return {name: value.encode() for name, value in text_attributes(event).items()} | {"data": event.body}


def _make_client(url: str, timeout: float) -> Any:
    if not isinstance(url, str):
        raise RegistrationError(f"The url of a RedisStream must be text, not {type(url).__name__}.")
    try:
        from outbox.storage.redis_client import make_client  # redis is an optional dependency

        return make_client(url, response_timeout=timeout, source="url")
    except SettingsError as error:
        raise RegistrationError(f"A RedisStream can't be made: {error}") from None


def _check(name: object, maxlen: object, timeout: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise RegistrationError(f"The name of a RedisStream must be text that is not empty, not {name!r}.")
    if maxlen is not None and (not isinstance(maxlen, int) or isinstance(maxlen, bool) or maxlen < 1):
        raise RegistrationError(f"maxlen must be a whole number from 1 on, or None, not {maxlen!r}.")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
        raise RegistrationError(f"timeout must be a number of seconds greater than 0, not {timeout!r}.")
