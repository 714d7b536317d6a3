"""The destinations that the settings name: OUTBOX_WEBHOOK_URL makes a `webhook`, OUTBOX_STREAM a `stream`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox.destinations.stream import RedisStream
from outbox.errors import RegistrationError, SettingsError
from outbox.settings import Settings
from outbox.webhooks.webhook import Webhook

if TYPE_CHECKING:
    from outbox.core import Outbox


def declare(box: Outbox) -> None:
    """Register them, in place of those that the registry has from other settings."""
    webhook, stream = _webhook(box.settings), _stream(box.settings)
    box.registry.declare(each for each in (webhook, stream) if each is not None)
    if webhook is not None and box.settings.webhook_secret is None:
        box.warn_once(
            "OUTBOX_WEBHOOK_SECRET is not set: what is posted to OUTBOX_WEBHOOK_URL is not signed, and its receiver "
            "can't tell who sent it."
        )


def _webhook(settings: Settings) -> Webhook | None:
    url, secret = settings.webhook_url, settings.webhook_secret
    if url is None:
        if secret is not None:
            raise SettingsError("OUTBOX_WEBHOOK_SECRET is set, but OUTBOX_WEBHOOK_URL is not: nothing is posted.")
        return None
    with _naming("OUTBOX_WEBHOOK_URL and OUTBOX_WEBHOOK_SECRET"):
        secrets = None if secret is None else secret.split()
        return Webhook("webhook", url, secret=secrets, client=settings.webhook_client)


def _stream(settings: Settings) -> RedisStream | None:
    if settings.stream is None:
        return None
    if settings.redis_url is None:
        raise SettingsError("OUTBOX_STREAM is set, but OUTBOX_REDIS_URL, where the stream would be, is not.")
    with _naming("OUTBOX_STREAM and OUTBOX_REDIS_URL"):
        return RedisStream("stream", url=settings.redis_url, stream=settings.stream)


@contextmanager
def _naming(variables: str) -> Iterator[None]:
    """What is wrong in terms of an argument, in terms of the variables that it came from."""
    try:
        yield
    except RegistrationError as error:
        raise SettingsError(f"{variables} can't be used. {error}") from None
