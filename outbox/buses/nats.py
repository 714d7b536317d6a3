"""NATS as a destination: each event is published to JetStream, and a batch is acknowledged at once."""

from __future__ import annotations

import re
from collections import UserString
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outbox.buses.bus import TIMEOUT, Bus, missing_library
from outbox.buses.message import HEADERS, MessageFormat
from outbox.buses.url_passwords import passwords_in
from outbox.destinations.name_template import KEY_FIELDS, NameTemplate
from outbox.destinations.order_policy import OnFailed
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.errors import RegistrationError, Unavailable, describe
from outbox.events import cloudevents
from outbox.events.event import Event

if TYPE_CHECKING:
    from outbox.buses.nats_connection import NatsConnection, Publication

MESSAGE_ID = "Nats-Msg-Id"
CONTENT_TYPE = "Content-Type"
# Options of the client that decide what an outcome means, so that an application can't choose them.
OWN_OPTIONS = frozenset(
    {
        "servers",
        "name",
        "error_cb",
        "allow_reconnect",
        "max_reconnect_attempts",
        "reconnect_time_wait",
        "connect_timeout",
    }
)
# Those that hold a secret.
SECRET_OPTIONS = ("password", "token", "nkeys_seed_str")
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")


class Nats(Bus["NatsConnection"]):
    """Publishes each event to a subject of NATS, and waits until JetStream has stored it.

    - `servers`: the server, such as `nats://user:password@host:4222` or `tls://…`; a list of them for a cluster.
    - `subject`: may contain {aggregate_type}, {aggregate_id}, {event_type}, {tenant_id} and {ordering_key}.
    - `format`: "headers", "json" or "cloudevents".
    - `source`: the `source` of CloudEvents; the other formats don't send it.
    - `options`: further arguments of `nats.connect`, such as `user_credentials` or `tls`.

    The other parameters are those of `outbox.Bus`.
    """

    def __init__(
        self,
        name: str,
        *,
        servers: str | Sequence[str],
        subject: str = "events.{event_type}",
        format: str = HEADERS,
        source: str = "/outbox",
        options: Mapping[str, Any] | None = None,
        events: Sequence[str] = ("*",),
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
        ordered: bool = True,
        on_failed: OnFailed = "block",
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(
            name,
            events=events,
            replaces=replaces,
            concurrency=concurrency,
            per_second=per_second,
            ordered=ordered,
            on_failed=on_failed,
            timeout=timeout,
        )
        self._subject = NameTemplate(subject, "subject", KEY_FIELDS)
        self._format = MessageFormat(format, source, prefix=None)
        self._servers = _check_servers(servers)
        self._options = _check_options(options)

    def __repr__(self) -> str:
        return f"<Nats {self.name!r} to {self._subject.text!r}>"  # the addresses may hold a password

    def secrets(self) -> Iterable[str]:
        yield from passwords_in(self._servers, user_is_token=True)
        yield from (each for name in SECRET_OPTIONS if isinstance(each := self._options.get(name), str))
        credentials = self._options.get("user_credentials")
        if isinstance(credentials, UserString):  # nats.aio.client.RawCredentials; anything else names files
            yield from str(credentials).split()
        for values in dict(self._options.get("ws_connection_headers") or {}).values():
            for value in map(str, values):
                yield from (value, value.rpartition(" ")[2])  # a token without the word Bearer, too

    def connect(self, seconds: float) -> NatsConnection:
        from outbox.buses.nats_connection import NatsConnection  # nats-py is an optional dependency

        return NatsConnection(self._servers, self._options, self.name, seconds)

    def is_open(self, connection: NatsConnection) -> bool:
        return connection.is_open

    def publish(
        self, connection: NatsConnection, events: Sequence[Event], seconds: float
    ) -> Iterator[tuple[Event, Outcome]]:
        batch: list[tuple[Event, Publication]] = []
        for event in events:
            try:
                batch.append((event, self._publication(event)))
            except Exception as error:  # an error in one event must not stop the others
                yield event, Failed(describe(error))
        try:
            results = connection.publish([each for _, each in batch], seconds)
        except Exception as error:
            raise Unavailable(describe(error)) from error
        for place, (event, publication) in enumerate(batch):
            if place in results:
                yield event, _outcome(results[place], publication.subject)

    def _publication(self, event: Event) -> Publication:
        from outbox.buses.nats_connection import Publication

        subject = self._subject.render(event)
        if not _SUBJECT.fullmatch(subject):
            raise ValueError(
                f"{subject!r} is not a subject of NATS: it has a space, a wildcard, or nothing between two dots"
            )
        message = self._format.make(event)
        headers = {name: cloudevents.encoded(value) for name, value in message.headers.items()}
        headers |= {MESSAGE_ID: event.id_text, CONTENT_TYPE: message.content_type}
        return Publication(subject, message.body, headers)


def _outcome(error: Exception | None, subject: str) -> Outcome:
    """Return the outcome of an event, given the error of its message."""
    if error is None:
        return DELIVERED_OUTCOME
    from outbox.buses.nats_connection import NoStream, NotPermitted, TooLarge

    if isinstance(error, TooLarge):
        return Failed(str(error))
    if isinstance(error, NotPermitted):
        return Retry(describe(error))
    if isinstance(error, NoStream):
        return Unavailable(f"no stream of JetStream has the subject {subject!r}, or its server is down")
    return Unavailable(describe(error))


def _check_servers(servers: object) -> list[str]:
    try:
        import nats  # noqa: F401
    except ImportError:
        raise missing_library("nats-py", "nats") from None
    found = [servers] if isinstance(servers, str) else servers
    if not isinstance(found, Sequence) or not found or not all(isinstance(each, str) and each for each in found):
        raise RegistrationError("The servers of a Nats must be text, or a list of texts.")
    for each in found:
        if not each.startswith(("nats://", "tls://", "ws://", "wss://")):
            raise RegistrationError("A server of a Nats can't be read as nats://user:password@host:port or tls://….")
    return list(found)


def _check_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise RegistrationError(
            f"options must be a mapping of arguments for nats.connect, not {type(options).__name__}."
        )
    own = sorted(OWN_OPTIONS & set(options))
    if own:
        raise RegistrationError(f"options may not have {', '.join(own)}: the destination sets these itself.")
    return dict(options)
