"""Find the Dramatiq broker for the outbox's messages: the application's own, or one created from the settings.

The messages are wake-ups (they tell a worker that events are due), sweeps (wake-ups that the scheduler sends at regular
times) and clean-ups. Emitters, workers and the scheduler find the broker in the same way. A broker that is created
from the settings uses Redis. Without OUTBOX_REDIS_URL it is an in-process broker, which other processes can't reach.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import dramatiq
import dramatiq.broker

from outbox.current_outbox import loaded_settings
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.broker_origin import created_from
from outbox.dramatiq.current_message import add_current_message
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.dramatiq.middleware import BusyThreads, ClosedConnections, Connections, SkippedResults
from outbox.dramatiq.rabbitmq import is_rabbitmq, looks_like_dramatiq_default
from outbox.errors import SettingsError
from outbox.settings import Settings


def create_broker(settings: Settings) -> dramatiq.Broker:
    """Create a broker from these settings. Dramatiq does not use it until `set_global_broker` is called."""
    broker = InProcessBroker() if settings.redis_url is None else _create_redis_broker(settings)
    created_from[broker] = settings
    return broker


def _create_redis_broker(settings: Settings) -> dramatiq.Broker:
    try:
        from outbox.dramatiq.redis_broker import OutboxRedisBroker  # redis is an extra
    except ImportError:
        raise SettingsError(
            "OUTBOX_REDIS_URL is set, but redis is not installed: pip install 'dramatiq-outbox[redis]'"
        ) from None
    return OutboxRedisBroker(settings)


def find_broker(settings: Settings) -> dramatiq.Broker:
    """Return Dramatiq's global broker if there is one, else a broker from the settings, which does not become global.

    Raise SettingsError if the global broker and the settings name different servers. Processes that don't import the
    application's modules use the server of the settings, so messages would be sent to one server and awaited at the
    other.
    """
    broker = dramatiq.broker.global_broker
    if broker is None:
        return _get_or_create_broker(settings)
    check_matches_settings(broker, settings)
    return broker


# An emitting process creates one broker for each Settings, and keeps it. Each named outbox has settings of its own.
_get_or_create_broker = lru_cache(maxsize=100)(create_broker)


def set_up_broker() -> dramatiq.Broker:
    """Add the outbox's middleware to Dramatiq's global broker, and return the broker.

    If there is no global broker yet, create one from the settings. A module that declares actors and does not set a
    broker calls this before its first `@dramatiq.actor`. Otherwise Dramatiq would create a broker on localhost.
    """
    broker = dramatiq.broker.global_broker
    return set_global_broker(create_broker(loaded_settings()) if broker is None else broker)


def set_global_broker(broker: dramatiq.Broker) -> dramatiq.Broker:
    """Make this the broker that Dramatiq uses, add the outbox's middleware to it, and return it."""
    dramatiq.set_broker(broker)
    install_middleware(broker)
    return broker


def install_middleware(broker: dramatiq.Broker) -> None:
    """Add the middleware that actors need in a process that uses the outbox. A second call does nothing."""
    for middleware in (Connections(), SkippedResults(), BusyThreads()):
        add_once(broker, middleware)
    add_once(broker, ClosedConnections(), is_first=True)
    add_current_message(broker)


def add_once(broker: dramatiq.Broker, middleware: dramatiq.Middleware, *, is_first: bool = False) -> None:
    """Add a middleware, unless the broker already has one of the same class."""
    if not any(type(each) is type(middleware) for each in broker.middleware):
        broker.add_middleware(middleware)
        if is_first:
            broker.middleware.insert(0, broker.middleware.pop())


def apply_changed_settings(broker: dramatiq.Broker, settings: Settings) -> None:
    """Apply settings that the application changed, with `outbox.configure`, after this global broker was created.

    If the Redis URL or the namespace changed, and the broker has no actors yet, a new broker becomes the global one.
    Otherwise the broker stays, and only the name of the outbox's queue is updated. (If the broker has actors and its
    server is now the wrong one, `find_broker` raises SettingsError.) An application's own broker is not changed.
    """
    origin = created_from.get(broker)
    if origin is None or origin == settings:
        return
    before, after = ((each.redis_url, each.namespace) for each in (origin, settings))
    if before != after and not broker.actors:
        set_global_broker(create_broker(settings))
    else:
        set_outbox_queue(broker, settings)


def set_outbox_queue(broker: dramatiq.Broker, settings: Settings) -> None:
    """Tell an OutboxRedisBroker the name of the outbox's queue; do nothing for other brokers."""
    if hasattr(broker, "outbox_queue"):
        broker.outbox_queue = settings.queue


def has_global_broker() -> bool:
    """Return whether Dramatiq has a broker: set by the application, or created because an actor was declared."""
    return dramatiq.broker.global_broker is not None


# Compare the broker with the settings


def check_matches_settings(broker: Any, settings: Settings) -> None:
    """Raise SettingsError if this broker and OUTBOX_REDIS_URL would send messages to different servers.

    Nothing is compared if OUTBOX_REDIS_URL is not set: then the application's broker is the only one.
    """
    if settings.redis_url is None or _matching.get(broker) == settings:
        return
    if is_redis(broker):
        _check_redis(broker, settings)
    elif is_rabbitmq(broker) and looks_like_dramatiq_default(broker):
        raise SettingsError(
            "OUTBOX_REDIS_URL is set, but Dramatiq uses its default broker, RabbitMQ on 127.0.0.1, because an actor "
            f"was declared before a broker was set. {SET_BROKER_FIRST}"
        )
    _matching[broker] = settings


# The brokers that match, with the settings they were compared with. Each pair is compared once, because an emitting
# process calls `check_matches_settings` before each wake-up.
_matching: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()

SET_BROKER_FIRST = (
    "Before the first @dramatiq.actor, call `dramatiq.set_broker(...)`, or call `outbox.dramatiq.set_up_broker()` to "
    "use OUTBOX_REDIS_URL."
)


def _check_redis(broker: Any, settings: Settings) -> None:
    from outbox.storage.redis_client import address_of, make_client  # redis is an extra

    assert settings.redis_url is not None  # noqa: S101  (for the type checker)
    broker_address, settings_address = address_of(broker.client), address_of(make_client(settings.redis_url))
    if broker_address is None or settings_address is None:
        return  # a Sentinel client, for example, does not know the address before it connects
    if broker_address != settings_address:
        raise SettingsError(
            f"Dramatiq's broker uses the Redis at {broker_address}, but OUTBOX_REDIS_URL names the Redis at "
            f"{settings_address}. Messages sent to one would not reach workers that use the other. Use the same Redis "
            "for both, or unset OUTBOX_REDIS_URL. If you have not set a broker, Dramatiq created one on localhost, "
            f"because an actor was declared before a broker was set. {SET_BROKER_FIRST}"
        )
    if broker.namespace != settings.namespace:
        raise SettingsError(
            f"Dramatiq's broker has the namespace {broker.namespace!r}, but OUTBOX_NAMESPACE is "
            f"{settings.namespace!r}. Messages sent to one would not reach workers that use the other. Set "
            f"OUTBOX_NAMESPACE={broker.namespace}, or unset OUTBOX_REDIS_URL."
        )
