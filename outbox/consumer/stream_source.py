"""Find the stream that a consumer reads: the stream of a registered `RedisStream`, or the stream with a given key."""

from __future__ import annotations

from typing import NamedTuple

from outbox.destinations.handler import Handler
from outbox.destinations.registry import Registry
from outbox.destinations.stream import RedisStream
from outbox.errors import RegistrationError, SettingsError


class StreamSource(NamedTuple):
    """The key of a stream, and the URL of its Redis."""

    key: str
    url: str

    def __repr__(self) -> str:
        return f"<StreamSource {self.key!r}>"  # no URL: it may contain a password


def find_stream(stream: object, url: object, registry: Registry, default_url: str | None) -> StreamSource:
    """Return the stream with this name or key; raise RegistrationError or SettingsError if it can't be determined.

    `url` takes precedence over the URL of the destination. `default_url` is used for a stream that is not registered as
    a destination here.
    """
    if not isinstance(stream, str) or not stream:
        raise RegistrationError(f"The name of a stream must be text that is not empty, not {stream!r}.")
    if not isinstance(url, str | None):
        raise SettingsError(f"The url of a stream must be text, not {type(url).__name__}.")
    destination = registry.destinations.get(stream)
    if destination is None or isinstance(destination, Handler):  # a handler may have the same name as its stream
        stream_url = default_url if url is None else url
        if stream_url is None:
            raise SettingsError(
                f"OUTBOX_REDIS_URL is not set, and no RedisStream is called {stream!r}, so the URL of the stream is "
                "unknown: set it, or pass --url (url=…)."
            )
        return StreamSource(stream, stream_url)
    if not isinstance(destination, RedisStream):
        raise RegistrationError(
            f"{stream!r} is a {type(destination).__name__}, not a RedisStream. Pass the name of a RedisStream, or the "
            "key of a stream."
        )
    return StreamSource(_key_of(destination), destination._url if url is None else url)


def _key_of(destination: RedisStream) -> str:
    template = destination._stream
    if template.varies:
        raise RegistrationError(
            f"{destination.name!r} writes to several streams, {template.text!r}, and a consumer reads one: "
            "name the stream itself."
        )
    return template.text.format()  # this turns {{ and }} into { and }
