"""RabbitMQ as a destination: each event is a persistent message, and a batch is confirmed at once."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outbox.buses.bus import TIMEOUT, Bus, missing_library
from outbox.buses.message import HEADERS, MessageFormat
from outbox.buses.url_passwords import passwords_in
from outbox.destinations.name_template import KEY_FIELDS, NameTemplate
from outbox.destinations.order_policy import OnFailed
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.errors import RegistrationError, Unavailable, describe
from outbox.events.event import Event

if TYPE_CHECKING:
    from outbox.buses.rabbit_connection import Confirmation, Publication, RabbitConnection, Refusal

PREFIX = "cloudEvents_"
# AMQP's limit for the names of exchanges, in bytes.
LONGEST_NAME = 255

# How RabbitMQ closes a channel: the exchange does not exist; the message is refused, for example since it is too large.
# Another code is 403: this user may not publish to the exchange, or not with this routing key.
NOT_FOUND, PRECONDITION_FAILED = 404, 406


class Rabbit(Bus["RabbitConnection"]):
    """Publishes each event to an exchange of RabbitMQ, with publisher confirms.

    - `url`: the server, such as `amqp://user:password@host:5672/vhost` or `amqps://…`; a list of them for a cluster.
    - `exchange`: the exchange, which must exist; "" for the default exchange, whose routing keys are names of queues.
    - `routing_key`: may contain {aggregate_type}, {aggregate_id}, {event_type}, {tenant_id} and {ordering_key}.
    - `mandatory`: whether a message that reaches no queue is returned, and tried again; otherwise it is dropped.
    - `format`: "headers", "json", "cloudevents" or "cloudevents-binary".
    - `source`: the `source` of CloudEvents; the other formats don't send it.
    - `ssl_context`: for certificate authorities, or a client certificate, of your own; for `amqps://`.

    The other parameters are those of `outbox.Bus`.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | Sequence[str],
        exchange: str,
        routing_key: str = "{event_type}",
        mandatory: bool = True,
        format: str = HEADERS,
        source: str = "/outbox",
        ssl_context: ssl.SSLContext | None = None,
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
        self.exchange = _check_exchange(exchange)
        self._routing_key = NameTemplate(routing_key, "routing_key", KEY_FIELDS)
        self._mandatory = mandatory
        self._format = MessageFormat(format, source, prefix=PREFIX)
        self._servers = parse_servers(url, name, ssl_context)
        self._urls = [url] if isinstance(url, str) else list(url)

    def __repr__(self) -> str:
        return f"<Rabbit {self.name!r} to {self.exchange!r}>"  # the URL may hold a password

    def secrets(self) -> Iterable[str]:
        return passwords_in(self._urls)

    def connect(self, seconds: float) -> RabbitConnection:
        from outbox.buses.rabbit_connection import RabbitConnection  # pika is an optional dependency

        return RabbitConnection(self._servers, self.name, seconds)

    def check_connection(self, connection: RabbitConnection, seconds: float) -> None:
        """Raise an error unless the exchange exists."""
        if self.exchange:  # the default exchange always does
            connection.run(connection.check_exchange(self.exchange), seconds)

    def is_open(self, connection: RabbitConnection) -> bool:
        return connection.is_open

    def publish(
        self, connection: RabbitConnection, events: Sequence[Event], seconds: float
    ) -> Iterator[tuple[Event, Outcome]]:
        if connection.blocked is not None:
            blocked = Unavailable(f"RabbitMQ has blocked publishers: {connection.blocked}")
            yield from ((event, blocked) for event in events)
            return
        batch: list[tuple[Event, Publication]] = []
        for event in events:
            try:
                batch.append((event, self._publication(event)))
            except Exception as error:  # an error in one event must not stop the others
                yield event, Failed(describe(error))
        yield from self._confirmed(connection, batch, time.monotonic() + seconds)

    def _publication(self, event: Event) -> Publication:
        from outbox.buses.rabbit_connection import make_publication  # pika is an optional dependency

        routing_key = self._routing_key.render(event)
        return make_publication(event, self._format.make(event), self.exchange, routing_key, mandatory=self._mandatory)

    def _confirmed(
        self, connection: RabbitConnection, batch: Sequence[tuple[Event, Publication]], ends_at: float
    ) -> Iterator[tuple[Event, Outcome]]:
        """Publish the batch; yield the outcomes of the events that RabbitMQ has confirmed or refused."""
        try:
            result = connection.publish([each for _, each in batch], max(0.0, ends_at - time.monotonic()))
        except Exception as error:
            raise Unavailable(describe(error)) from error
        unconfirmed = []
        for place, (event, publication) in enumerate(batch):
            confirmation = result.confirmations.get(place)
            if confirmation is None:
                unconfirmed.append((event, publication))
            else:
                yield event, self._outcome(confirmation, publication)
        if not unconfirmed:
            return
        if result.refusal is not None:
            yield from self._after_refusal(connection, unconfirmed, result.refusal, ends_at)
        elif result.error is not None:
            raise Unavailable(describe(result.error)) from result.error
        elif connection.blocked is not None:
            raise Unavailable(f"not confirmed in time: RabbitMQ has blocked publishers: {connection.blocked}")

    def _after_refusal(
        self,
        connection: RabbitConnection,
        unconfirmed: Sequence[tuple[Event, Publication]],
        refusal: Refusal,
        ends_at: float,
    ) -> Iterator[tuple[Event, Outcome]]:
        """Yield the outcomes of the events that were unconfirmed when RabbitMQ closed their channel.

        RabbitMQ does not say which message it has refused. So each of them is published again alone, on a new channel.
        """
        if refusal.code == NOT_FOUND:  # the exchange is the same for all
            missing = Unavailable(str(refusal))
            yield from ((event, missing) for event, _ in unconfirmed)
        elif len(unconfirmed) > 1:
            for each in unconfirmed:
                yield from self._confirmed(connection, [each], ends_at)
        else:
            ((event, _),) = unconfirmed
            yield event, Failed(str(refusal)) if refusal.code == PRECONDITION_FAILED else Retry(str(refusal))

    def _outcome(self, confirmation: Confirmation, publication: Publication) -> Outcome:
        match confirmation.kind:
            case "confirmed":
                return DELIVERED_OUTCOME
            case "rejected":
                return Unavailable("RabbitMQ rejected the message: a queue that it is routed to is full or unavailable")
            case "returned":
                return Retry(
                    f"RabbitMQ returned the message: {confirmation.reason}. No queue of the exchange "
                    f"{self.exchange!r} is bound with the routing key {publication.routing_key!r}"
                )
            case "invalid":
                return Failed(confirmation.reason)


def _check_exchange(exchange: object) -> str:
    if not isinstance(exchange, str) or len(exchange.encode()) > LONGEST_NAME:
        raise RegistrationError(f"exchange must be text of up to {LONGEST_NAME} bytes, not {exchange!r}.")
    return exchange


def parse_servers(url: object, name: str, ssl_context: ssl.SSLContext | None) -> list[Any]:
    """Return pika's parameters for each server. An error does not repeat a URL, which may contain a password."""
    try:
        import pika
    except ImportError:
        raise missing_library("pika", "rabbitmq") from None
    urls = [url] if isinstance(url, str) else url
    if not isinstance(urls, Sequence) or not urls or not all(isinstance(each, str) for each in urls):
        raise RegistrationError("The url of a RabbitMQ must be text, or a list of texts.")
    servers = []
    for each in urls:
        try:
            server = pika.URLParameters(each)
        except Exception:
            server = None
        if server is None or not each.startswith(("amqp://", "amqps://")):
            raise RegistrationError(
                "The url of a RabbitMQ can't be read as amqp://user:password@host:port/vhost or amqps://…; special "
                "characters in a password and in a vhost must be percent-encoded."
            )
        server.connection_attempts = 1
        server.client_properties = {"connection_name": f"outbox {name}"}
        if ssl_context is not None and each.startswith("amqps://"):
            server.ssl_options = pika.SSLOptions(ssl_context, server.host)
        servers.append(server)
    return servers
