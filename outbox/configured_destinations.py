"""Make the destinations that the settings name: OUTBOX_WEBHOOK_URL makes a `webhook`, OUTBOX_STREAM a `stream`.

Each message broker has its own: OUTBOX_RABBITMQ_URL makes a `rabbitmq`, OUTBOX_NATS_URL a `nats`, and
OUTBOX_KAFKA_SERVERS a `kafka`.

With them, a worker can deliver events without importing any module of the application. An Outbox registers them when it
is made. The modules of a destination are imported only if the settings name it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError, SettingsError
from outbox.settings import Settings

if TYPE_CHECKING:
    from outbox.buses.kafka import Kafka
    from outbox.buses.nats import Nats
    from outbox.buses.rabbit import Rabbit
    from outbox.destinations.stream import RedisStream
    from outbox.webhooks.webhook import Webhook

logger = logging.getLogger(__name__)


def register_configured_destinations(settings: Settings, registry: Registry) -> None:
    """Register the destinations that the settings name, and remove those that earlier settings named."""
    webhook = _make_webhook(settings)
    configured = (
        webhook, _make_stream(settings), _make_rabbit(settings), _make_nats(settings), _make_kafka(settings),
    )  # fmt: skip
    registry.set_configured(each for each in configured if each is not None)
    if webhook is not None and settings.webhook_secret is None:
        logger.warning(
            "OUTBOX_WEBHOOK_SECRET is not set: requests to OUTBOX_WEBHOOK_URL are not signed, and their receiver can't "
            "verify who sent them."
        )


def _make_webhook(settings: Settings) -> Webhook | None:
    url, secret = settings.webhook_url, settings.webhook_secret
    if url is None:
        if secret is not None:
            raise SettingsError("OUTBOX_WEBHOOK_SECRET is set, but OUTBOX_WEBHOOK_URL is not: nothing is posted.")
        return None
    from outbox.webhooks.webhook import Webhook

    with _naming_variables("OUTBOX_WEBHOOK_URL and OUTBOX_WEBHOOK_SECRET"):
        secrets = None if secret is None else secret.split()
        return Webhook(
            "webhook",
            url,
            secret=secrets,
            client=settings.webhook_client,
            response_excerpt=settings.webhook_response_excerpt,
        )


def _make_stream(settings: Settings) -> RedisStream | None:
    if settings.stream is None:
        return None
    if settings.redis_url is None:
        raise SettingsError("OUTBOX_STREAM is set, but OUTBOX_REDIS_URL, where the stream would be, is not.")
    from outbox.destinations.stream import RedisStream

    with _naming_variables("OUTBOX_STREAM and OUTBOX_REDIS_URL"):
        return RedisStream("stream", url=settings.redis_url, stream=settings.stream)


def _make_rabbit(settings: Settings) -> Rabbit | None:
    url, exchange = settings.rabbitmq_url, settings.rabbitmq_exchange
    if url is None and exchange is None:
        return None
    if url is None or exchange is None:
        missing, present = ("URL", "EXCHANGE") if url is None else ("EXCHANGE", "URL")
        raise SettingsError(
            f"OUTBOX_RABBITMQ_{present} is set, but OUTBOX_RABBITMQ_{missing} is not: nothing would be published. Set "
            "both, or neither."
        )
    from outbox.buses.rabbit import Rabbit

    with _naming_variables("OUTBOX_RABBITMQ_URL and OUTBOX_RABBITMQ_EXCHANGE"):
        return Rabbit("rabbitmq", url=url.split(), exchange=exchange)


def _make_nats(settings: Settings) -> Nats | None:
    if settings.nats_url is None:
        return None
    from outbox.buses.nats import Nats

    with _naming_variables("OUTBOX_NATS_URL and OUTBOX_NATS_SUBJECT"):
        return Nats("nats", servers=settings.nats_url.split(), subject=settings.nats_subject)


def _make_kafka(settings: Settings) -> Kafka | None:
    if settings.kafka_servers is None:
        return None
    from outbox.buses.kafka import Kafka

    with _naming_variables("OUTBOX_KAFKA_SERVERS, OUTBOX_KAFKA_TOPIC and OUTBOX_KAFKA_CONFIG"):
        return Kafka(
            "kafka",
            bootstrap_servers=settings.kafka_servers,
            topic=settings.kafka_topic,
            config=_parse_config(settings.kafka_config),
        )


def _parse_config(text: str | None) -> dict[str, str]:
    """Return the settings of librdkafka in OUTBOX_KAFKA_CONFIG. An error repeats nothing of them."""
    pairs = [each.partition("=") for each in (text or "").split()]
    if not all(name and separator for name, separator, _ in pairs):
        raise SettingsError("OUTBOX_KAFKA_CONFIG must be name=value, several separated by spaces.")
    return {name: value for name, _, value in pairs}


@contextmanager
def _naming_variables(variables: str) -> Iterator[None]:
    """Turn a RegistrationError about an argument into a SettingsError that names the variables it came from."""
    try:
        yield
    except RegistrationError as error:
        raise SettingsError(f"{variables} can't be used. {error}") from None
