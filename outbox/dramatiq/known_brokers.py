"""The brokers of this process that the outbox knows: Dramatiq's global one, and those given to `outbox.transactional`.

Dramatiq has no list of brokers. A job names its actor, and an outbox worker looks for the actor in these brokers. If
several of them have an actor of this name, the job also says whether its broker is the global one, and describes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import dramatiq
import dramatiq.broker

from outbox.dramatiq.broker_kind import describe_broker

# In the order in which they were named.
_named: WeakKeyDictionary[dramatiq.Broker, None] = WeakKeyDictionary()


def add(broker: dramatiq.Broker) -> None:
    """Remember a broker that the application has named."""
    _named[broker] = None


def is_known(broker: dramatiq.Broker) -> bool:
    """Return whether outbox workers that import the same modules can find this broker."""
    return broker is dramatiq.broker.global_broker or broker in _named


def are_named() -> bool:
    """Return whether `outbox.transactional` was called in this process."""
    return bool(_named)


def broker_of_actor(actor_name: str, other: str | None) -> dramatiq.Broker | None:
    """Return the broker on which an actor of this name is declared in this process.

    The global broker is preferred, or, if `other` is given, a broker that is not global and has this description. If
    there is no such broker with the actor, another one is returned that has it: a broker may be global in one process,
    and not in another.
    """
    main = dramatiq.broker.global_broker
    if other is None and main is not None and actor_name in main.actors:
        return main
    having = [broker for broker in _others() if actor_name in broker.actors]
    if having:
        return next((broker for broker in having if describe_broker(broker) == other), having[0])
    return main if main is not None and actor_name in main.actors else None


def _others() -> Iterator[dramatiq.Broker]:
    """Yield the brokers that are not global, the latest one first: an earlier one may be left over from a test."""
    return (broker for broker in reversed(list(_named)) if broker is not dramatiq.broker.global_broker)
