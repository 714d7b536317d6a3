"""Tell which kind of broker Dramatiq uses. (`rabbitmq.is_rabbitmq` is beside what it is for.)"""

from __future__ import annotations

from typing import Any

from dramatiq.brokers.stub import StubBroker


def is_in_process(broker: object) -> bool:
    """Return whether the broker reaches this process only."""
    return isinstance(broker, StubBroker)


def is_redis(broker: Any) -> bool:
    """Return whether the broker uses Redis; a subclass or a wrapper counts, if it has the two attributes."""
    return hasattr(broker, "client") and hasattr(broker, "namespace")
