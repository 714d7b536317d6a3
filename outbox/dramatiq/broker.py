"""Find the Dramatiq broker that carries the wake-ups: the application's own, or one made from the settings.

Emitters, workers and the scheduler find it in the same way. A broker made from the settings uses Redis, or stays inside
the process if OUTBOX_REDIS_URL is not set.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import dramatiq
import dramatiq.broker
from dramatiq.brokers.stub import StubBroker

from outbox.current_outbox import loaded_settings
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.middleware import BusyThreads, Connections, Skips
from outbox.dramatiq.rabbitmq import is_rabbitmq, is_the_default
from outbox.errors import SettingsError
from outbox.settings import Settings

DEAD_LETTERS_KEPT = 100


class InProcessBroker(StubBroker):
    """Dramatiq's stub broker, for production in one process without a server: its dead letters are limited."""

    def __init__(self) -> None:
        super().__init__()
        self.dead_letters_by_queue: Any = defaultdict(lambda: deque(maxlen=DEAD_LETTERS_KEPT))


def make_broker(settings: Settings) -> dramatiq.Broker:
    """Return a broker for these settings; it is not yet the one that Dramatiq uses."""
    broker = InProcessBroker() if settings.redis_url is None else _redis_broker(settings)
    _made_for[broker] = settings
    return broker


_made_for: WeakKeyDictionary[dramatiq.Broker, Settings] = WeakKeyDictionary()


def _redis_broker(settings: Settings) -> dramatiq.Broker:
    try:
        from outbox.dramatiq.redis_broker import OutboxRedisBroker  # redis is an extra
    except ImportError:
        raise SettingsError(
            "OUTBOX_REDIS_URL is set, but redis is not installed: pip install 'dramatiq-outbox[redis]'"
        ) from None
    return OutboxRedisBroker(settings)


def broker_in_use(settings: Settings) -> dramatiq.Broker:
    """Return the broker that the application has set, else one from the settings, without setting it.

    Raise SettingsError if the settings and the application's broker name different servers: processes that don't import
    the application's modules would use the other one.
    """
    broker = dramatiq.broker.global_broker
    if broker is None:
        return _broker_of(settings)
    check_agreement(broker, settings)
    return broker


# An emitting process makes one broker for each configuration, and keeps it.
_broker_of = lru_cache(maxsize=8)(make_broker)


def set_up_broker() -> dramatiq.Broker:
    """Have Dramatiq use the application's broker if it has set one, else one from the settings; return it.

    For a module that declares actors and brings no broker: call it before the first `@dramatiq.actor`. Otherwise
    Dramatiq makes a broker on localhost.
    """
    broker = dramatiq.broker.global_broker
    return set_up(make_broker(loaded_settings()) if broker is None else broker)


def set_up(broker: dramatiq.Broker) -> dramatiq.Broker:
    """Have Dramatiq use this broker, with our middleware; return it."""
    dramatiq.set_broker(broker)
    install_middleware(broker)
    return broker


def install_middleware(broker: dramatiq.Broker) -> None:
    """Add the middleware that actors beside an outbox need. A second call does nothing."""
    for middleware in (Connections(), Skips(), BusyThreads()):
        add_once(broker, middleware)


def add_once(broker: dramatiq.Broker, middleware: dramatiq.Middleware) -> None:
    """Add a middleware, unless the broker has one of its kind."""
    if not any(type(each) is type(middleware) for each in broker.middleware):
        broker.add_middleware(middleware)


def adopt_settings(broker: dramatiq.Broker, settings: Settings) -> dramatiq.Broker:
    """Return a broker for settings that the application has changed since this one was made from the environment.

    It is the same one unless the change is about the server, and nothing was declared on it yet.
    """
    made_for = _made_for.get(broker)
    if made_for is None or made_for == settings:
        return broker
    server = ("redis_url", "namespace")
    if not broker.actors and any(getattr(made_for, name) != getattr(settings, name) for name in server):
        return set_up(make_broker(settings))
    adopt_queue(broker, settings)
    return broker


def adopt_queue(broker: dramatiq.Broker, settings: Settings) -> None:
    """Tell a broker of our own class which queue is the outbox's."""
    if hasattr(broker, "outbox_queue"):
        broker.outbox_queue = settings.queue


def is_set() -> bool:
    """Return whether the application has set a broker."""
    return dramatiq.broker.global_broker is not None


# Whether it agrees with the settings


def check_agreement(broker: Any, settings: Settings) -> None:
    """Raise SettingsError if this broker and OUTBOX_REDIS_URL would send messages to different places."""
    if settings.redis_url is None or _agreed.get(broker) == settings:
        return
    if is_redis(broker):
        _check_redis(broker, settings)
    elif is_rabbitmq(broker) and is_the_default(broker):
        raise SettingsError(
            "Dramatiq has made its default broker, RabbitMQ on 127.0.0.1, since an actor was declared before a broker "
            f"was set, and OUTBOX_REDIS_URL is set. {ADVICE}"
        )
    _agreed[broker] = settings


# Each pair is checked once: emitters ask before each wake-up.
_agreed: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()

ADVICE = (
    "Call `dramatiq.set_broker(...)`, or `outbox.dramatiq.set_up_broker()` for one from OUTBOX_REDIS_URL, before the "
    "first @dramatiq.actor."
)


def _check_redis(broker: Any, settings: Settings) -> None:
    from outbox.storage.redis_client import address_of, make_client  # redis is an extra

    assert settings.redis_url is not None  # noqa: S101  (for the type checker)
    theirs, ours = address_of(broker.client), address_of(make_client(settings.redis_url))
    if theirs is None or ours is None:
        return  # unknown before it connects, as for a Sentinel's client
    if theirs != ours:
        raise SettingsError(
            f"Dramatiq's broker uses the Redis at {theirs}, and OUTBOX_REDIS_URL names the one at {ours}. Messages of "
            "one would not reach the workers of the other. Let both name the same one, or leave out OUTBOX_REDIS_URL. "
            "If you have set no broker, Dramatiq made one on localhost for an actor that was declared too early. "
            f"{ADVICE}"
        )
    if broker.namespace != settings.namespace:
        raise SettingsError(
            f"Dramatiq's broker has the namespace {broker.namespace!r}, and OUTBOX_NAMESPACE is "
            f"{settings.namespace!r}. Messages of one would not reach the workers of the other. Set "
            f"OUTBOX_NAMESPACE={broker.namespace}, or leave out OUTBOX_REDIS_URL."
        )
