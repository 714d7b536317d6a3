"""Make the destinations that the settings name: OUTBOX_WEBHOOK_URL makes a `webhook`, OUTBOX_STREAM a `stream`.

With them, a worker can deliver events without importing any module of the application. An Outbox registers them when it
is made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from outbox.destinations.registry import Registry
from outbox.destinations.stream import RedisStream
from outbox.errors import RegistrationError, SettingsError
from outbox.settings import Settings
from outbox.webhooks.webhook import Webhook

logger = logging.getLogger(__name__)


def register_configured_destinations(settings: Settings, registry: Registry) -> None:
    """Register the destinations that the settings name, and remove those that earlier settings named."""
    webhook, stream = _make_webhook(settings), _make_stream(settings)
    registry.set_configured(each for each in (webhook, stream) if each is not None)
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
    with _naming_variables("OUTBOX_WEBHOOK_URL and OUTBOX_WEBHOOK_SECRET"):
        secrets = None if secret is None else secret.split()
        return Webhook("webhook", url, secret=secrets, client=settings.webhook_client)


def _make_stream(settings: Settings) -> RedisStream | None:
    if settings.stream is None:
        return None
    if settings.redis_url is None:
        raise SettingsError("OUTBOX_STREAM is set, but OUTBOX_REDIS_URL, where the stream would be, is not.")
    with _naming_variables("OUTBOX_STREAM and OUTBOX_REDIS_URL"):
        return RedisStream("stream", url=settings.redis_url, stream=settings.stream)


@contextmanager
def _naming_variables(variables: str) -> Iterator[None]:
    """Turn a RegistrationError about an argument into a SettingsError that names the variables it came from."""
    try:
        yield
    except RegistrationError as error:
        raise SettingsError(f"{variables} can't be used. {error}") from None
