"""The brokers of this process that the outbox knows: Dramatiq's global one, and those given to `outbox.transactional`.

Dramatiq has no list of brokers. A job names its actor, and an outbox worker looks for the actor in these brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

import dramatiq
import dramatiq.broker

_named: WeakSet[dramatiq.Broker] = WeakSet()


def add(broker: dramatiq.Broker) -> None:
    """Remember a broker that the application has named."""
    _named.add(broker)


def is_known(broker: dramatiq.Broker) -> bool:
    """Return whether outbox workers that import the same modules can find this broker."""
    return broker is dramatiq.broker.global_broker or broker in _named


def broker_of_actor(actor_name: str) -> dramatiq.Broker | None:
    """Return the broker on which an actor of this name is declared in this process; the global one first."""
    return next((broker for broker in _known() if actor_name in broker.actors), None)


def _known() -> Iterator[dramatiq.Broker]:
    if dramatiq.broker.global_broker is not None:
        yield dramatiq.broker.global_broker
    yield from list(_named)
