"""Know where a broker comes from: the outbox has created it from the settings, or the application has made its own.

A process that does not import the application's modules can only have a broker that was created from the settings. So
a job whose broker the settings don't name must wait for a process that has that broker.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import dramatiq

from outbox.dramatiq.broker_kind import is_redis
from outbox.settings import Settings

# The brokers that the outbox has created, each with its settings. An application's own broker is not in here.
created_from: WeakKeyDictionary[dramatiq.Broker, Settings] = WeakKeyDictionary()

# Each broker with the settings it was compared with last, and the result: `outbox.send` asks for each message.
_compared: WeakKeyDictionary[Any, tuple[Settings, bool]] = WeakKeyDictionary()


def is_applications_own(broker: dramatiq.Broker) -> bool:
    """Return whether the application has made the broker."""
    return broker not in created_from


def is_named_by_settings(broker: Any, settings: Settings) -> bool:
    """Return whether other processes get a broker on the same server and namespace from these settings."""
    known = _compared.get(broker)
    if known is None or known[0] is not settings:
        known = _compared[broker] = settings, not is_applications_own(broker) or _is_same_redis(broker, settings)
    return known[1]


def _is_same_redis(broker: Any, settings: Settings) -> bool:
    if settings.redis_url is None or not is_redis(broker):
        return False
    from outbox.storage.redis_client import address_of, make_client  # redis is an extra

    address = address_of(broker.client)  # None for Sentinel: then the servers can't be compared
    is_same_server = address is not None and address == address_of(make_client(settings.redis_url))
    return is_same_server and bool(broker.namespace == settings.namespace)
