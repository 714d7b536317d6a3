"""Kafka as a destination: an idempotent producer, and an outcome for each event from its delivery report."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outbox.buses.bus import TIMEOUT, Bus, missing_library
from outbox.buses.message import HEADERS, MessageFormat
from outbox.destinations.name_template import FIELDS, KEY_FIELDS, NameTemplate
from outbox.destinations.order_policy import OnFailed
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.errors import RegistrationError, Unavailable, describe
from outbox.events.event import Event

if TYPE_CHECKING:
    from outbox.buses.kafka_connection import KafkaConnection, ProducerLog, Publication

PREFIX = "ce_"
CONTENT_TYPE = "content-type"
# The reports of messages that have timed out must come before the destination's own deadline.
PART_OF_TIMEOUT = 0.9
# Settings of librdkafka that an application can't pass: the guarantees of the outbox need them, or the destination sets
# them itself.
OWN_CONFIG = frozenset(
    (
        "acks", "request.required.acks", "enable.idempotence", "transactional.id", "bootstrap.servers",
        "metadata.broker.list", "message.timeout.ms", "delivery.timeout.ms", "error_cb", "on_delivery",
        "delivery.report.only.error", "dr_cb", "dr_msg_cb", "logger",
    )
)  # fmt: skip
# The names of librdkafka's settings that may hold a secret.
_SECRET_SETTING = re.compile(r"password|secret|\.pem$|oauthbearer|jaas", re.IGNORECASE)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Kafka(Bus["KafkaConnection"]):
    """Publishes each event to a topic of Kafka, with an idempotent producer and `acks=all`.

    - `bootstrap_servers`: the brokers to ask first, such as `kafka-1:9092,kafka-2:9092`, or a list of them.
    - `topic`: may contain {aggregate_type}, {aggregate_id}, {event_type} and {tenant_id}.
    - `key`: likewise, and {ordering_key}; an event that lacks a field of it has no key.
    - `config`: further settings of librdkafka, such as those for SASL and TLS.
    - `format`: "headers", "json", "cloudevents" or "cloudevents-binary".
    - `source`: the `source` of CloudEvents; the other formats don't send it.

    The other parameters are those of `outbox.Bus`.
    """

    def __init__(
        self,
        name: str,
        *,
        bootstrap_servers: str | Sequence[str],
        topic: str = "events.{aggregate_type}",
        key: str = "{ordering_key}",
        config: Mapping[str, Any] | None = None,
        format: str = HEADERS,
        source: str = "/outbox",
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
        self._topic = NameTemplate(topic, "topic", FIELDS)
        self._key = NameTemplate(key, "key", KEY_FIELDS)
        self._format = MessageFormat(format, source, prefix=PREFIX)
        self._config = _check_config(config) | {
            "bootstrap.servers": _check_servers(bootstrap_servers),
            "enable.idempotence": True,
            "acks": "all",
        }
        self._log: ProducerLog | None = None
        _check_library()

    def __repr__(self) -> str:
        return f"<Kafka {self.name!r} to {self._topic.text!r}>"  # the configuration may hold a password

    def secrets(self) -> Iterable[str]:
        return [
            value for name, value in self._config.items() if _SECRET_SETTING.search(name) and isinstance(value, str)
        ]

    def connect(self, seconds: float) -> KafkaConnection:
        from outbox.buses.kafka_connection import (
            KafkaConnection,
            ProducerLog,
        )  # confluent-kafka is an optional dependency

        if self._log is None:  # it remembers what it has logged, so it is kept when the connection is opened again
            self._log = ProducerLog(self._redact)
        message_timeout = max(1, int(self.timeout * PART_OF_TIMEOUT * 1000))
        defaults = {
            "client.id": f"outbox-{self.name}",
            # librdkafka's default of ten seconds is how long events would wait for a broker that is back.
            "reconnect.backoff.max.ms": 1000,
        }
        config = defaults | self._config | {"message.timeout.ms": message_timeout}
        return KafkaConnection(config, self.name, seconds, self._log)

    def is_open(self, connection: KafkaConnection) -> bool:
        return connection.is_open

    def publish(
        self, connection: KafkaConnection, events: Sequence[Event], seconds: float
    ) -> Iterator[tuple[Event, Outcome]]:
        batch: list[tuple[Event, Publication]] = []
        for event in events:
            try:
                batch.append((event, self._publication(event)))
            except Exception as error:  # an error in one event must not stop the others
                yield event, Failed(describe(error))
        results = _publish(connection, [each for _, each in batch], time.monotonic() + seconds)
        for place, (event, publication) in enumerate(batch):
            if place in results:
                yield event, _outcome(connection, results[place], publication.topic)

    def _publication(self, event: Event) -> Publication:
        from outbox.buses.kafka_connection import Publication

        topic = self._topic.render(event)
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ValueError(
                f"{topic!r} is not a name of a topic: it may have up to 249 letters, digits, dots, hyphens and "
                "underscores"
            )
        key = self._key.render_key(event)
        message = self._format.make(event)
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in message.headers.items()
        ]
        headers.append((CONTENT_TYPE, message.content_type.encode()))
        return Publication(topic, None if key is None else key.encode(), message.body, headers)


def _publish(connection: KafkaConnection, batch: Sequence[Publication], ends_at: float) -> dict[int, Exception | None]:
    """Publish the batch; return the result of each message.

    librdkafka sends several messages as one, and a broker refuses them as one: because one of them is invalid, or
    because they are too large together. So each that was refused is published again alone.
    """
    from outbox.buses.kafka_connection import is_refused

    results = connection.publish(batch, max(0.0, ends_at - time.monotonic()))
    refused = [place for place, error in results.items() if error is not None and is_refused(error)]
    for place in refused if len(batch) > 1 else ():
        del results[place]
        alone = connection.publish([batch[place]], max(0.0, ends_at - time.monotonic()))
        if 0 in alone:
            results[place] = alone[0]
    return results


def _outcome(connection: KafkaConnection, error: Exception | None, topic: str) -> Outcome:
    """Return the outcome of an event, given the error of its message."""
    if error is None:
        return DELIVERED_OUTCOME
    from outbox.buses.kafka_connection import kind_of, text_of

    match kind_of(error):
        case "failed":
            return Failed(text_of(error))
        case "retry":
            return Retry(f"topic {topic}: {text_of(error)}")
        case _:
            return Unavailable(connection.explained(error))


def _check_servers(servers: object) -> str:
    found = [servers] if isinstance(servers, str) else servers
    if not isinstance(found, Sequence) or not found or not all(isinstance(each, str) and each for each in found):
        raise RegistrationError("bootstrap_servers must be text such as kafka-1:9092,kafka-2:9092, or a list of texts.")
    if any("@" in each for each in found):
        # librdkafka would take the password for a part of the host's name, and log it.
        raise RegistrationError(
            "bootstrap_servers may have no user and password: pass sasl.username and sasl.password in config "
            "(OUTBOX_KAFKA_CONFIG)."
        )
    return ",".join(found)


def _check_config(config: object) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
        raise RegistrationError("config must be a mapping of names of librdkafka's settings to values.")
    own = sorted(OWN_CONFIG & set(config))
    if own:
        raise RegistrationError(f"config may not have {', '.join(own)}: the destination sets these itself.")
    return dict(config)


def _check_library() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise missing_library("confluent-kafka", "kafka") from None
