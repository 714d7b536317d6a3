"""Find the stream or queue that a consumer reads, and make its source.

A name is that of a registered `RedisStream`, the key of a stream, or the name of a queue: the URL decides which.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox.buses.bus import missing_library
from outbox.consumer.options import DEFAULT_GROUP, ConsumerOptions, Intervals
from outbox.consumer.source import Source
from outbox.destinations.handler import Handler
from outbox.destinations.registry import Registry
from outbox.destinations.stream import RedisStream
from outbox.errors import RegistrationError, SettingsError
from outbox.settings import Settings

RABBITMQ = ("amqp://", "amqps://")


class Address(NamedTuple):
    """The key of a stream, or the name of a queue, and the URL of its server."""

    key: str
    url: str

    def __repr__(self) -> str:
        return f"<Address {self.key!r}>"  # no URL: it may contain a password


def find_address(stream: object, url: object, registry: Registry, settings: Settings) -> Address:
    """Return the address of the stream or queue with this name.

    Raise RegistrationError or SettingsError if it can't be determined. `url` takes precedence over the URL of the
    destination; the settings are used for what is not registered as a destination here.
    """
    if not isinstance(stream, str) or not stream:
        raise RegistrationError(f"The name of a stream must be text that is not empty, not {stream!r}.")
    if not isinstance(url, str | None):
        raise SettingsError(f"The url of a stream must be text, not {type(url).__name__}.")
    destination = registry.destinations.get(stream)
    if destination is None or isinstance(destination, Handler):  # a handler may have the same name as its stream
        default_url = settings.redis_url if settings.consume_url is None else settings.consume_url
        found_url = default_url if url is None else url
        if found_url is None:
            raise SettingsError(
                f"No RedisStream is called {stream!r}, and neither OUTBOX_CONSUME_URL nor OUTBOX_REDIS_URL is set, so "
                "the URL of its server is unknown: set one of them, or pass --url (url=…)."
            )
        return Address(stream, found_url)
    if url is not None and url.startswith(RABBITMQ):
        return Address(stream, url)
    if not isinstance(destination, RedisStream):
        raise RegistrationError(
            f"{stream!r} is a {type(destination).__name__}, not a RedisStream. Pass the name of a RedisStream, the key "
            "of a stream, or the name of a queue and the URL of its RabbitMQ."
        )
    return Address(_key_of(destination), destination._url if url is None else url)


def _key_of(destination: RedisStream) -> str:
    template = destination._stream
    if template.varies:
        raise RegistrationError(
            f"{destination.name!r} writes to several streams, {template.text!r}, and a consumer reads one: "
            "name the stream itself."
        )
    return template.text.format()  # this turns {{ and }} into { and }


def make_source(address: Address, options: ConsumerOptions, intervals: Intervals, max_payload_bytes: int) -> Source:
    """Return the source at the address. It connects when it is first used."""
    if not address.url.startswith(RABBITMQ):
        from outbox.consumer.redis_source import RedisSource  # redis is an optional dependency

        return RedisSource(
            address.url,
            options,
            block_seconds=intervals.block_seconds,
            dead_after_seconds=intervals.dead_after_seconds,
        )
    if options.group != DEFAULT_GROUP:
        raise SettingsError(
            f"A queue of RabbitMQ has no group {options.group!r}: its consumers share it. For a second service, "
            "declare a queue of its own, and bind it to the same exchange."
        )
    try:
        from outbox.consumer.rabbit_source import RabbitSource  # pika is an optional dependency
    except ImportError:
        raise missing_library("pika", "rabbitmq") from None
    return RabbitSource(address.url, options, max_payload_bytes)
