"""The Dramatiq broker, from the settings: Redis, or inside the process when there is none."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from typing import Any

import dramatiq
from dramatiq.brokers.stub import StubBroker

import outbox
from jobs.middleware import Connections, Lifecycle, Occupancy, Skips
from outbox.settings import Settings

logger = logging.getLogger("outbox")

DEAD_LETTERS_KEPT = 100


class InProcessBroker(StubBroker):
    """Dramatiq's stub broker for real use: one process, no server, and nothing that grows without end."""

    def __init__(self) -> None:
        super().__init__()
        self.dead_letters_by_queue: Any = defaultdict(lambda: deque(maxlen=DEAD_LETTERS_KEPT))


def make_broker(settings: Settings) -> dramatiq.Broker:
    """A broker for these settings; not yet the one that Dramatiq uses."""
    if settings.redis_url is None:
        return InProcessBroker()
    try:
        from jobs.redis_broker import make_redis_broker  # redis is an extra
    except ImportError:
        raise outbox.SettingsError(
            "OUTBOX_REDIS_URL is set, but redis is not installed: pip install 'dramatiq-outbox[redis]'"
        ) from None
    return make_redis_broker(settings)


def broker_in_use() -> dramatiq.Broker:
    """The application's broker if it has set one, else one from the settings; with our middleware in place."""
    broker = dramatiq.broker.global_broker
    if broker is None:
        broker = make_broker(outbox.loaded_settings())
        dramatiq.set_broker(broker)
    install_middleware(broker)
    return broker


def install_middleware(broker: dramatiq.Broker) -> None:
    """Add what our actors need; once, however often it is called."""
    present = {type(middleware) for middleware in broker.middleware}
    for middleware in (Connections, Skips, Occupancy, Lifecycle):
        if middleware not in present:
            broker.add_middleware(middleware())
