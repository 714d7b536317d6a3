"""Check which kind of broker Dramatiq uses. The check for RabbitMQ is `rabbitmq.is_rabbitmq`."""

from __future__ import annotations

from typing import Any

from dramatiq.brokers.stub import StubBroker


def is_in_process(broker: object) -> bool:
    """Return whether the broker exists only inside this process, so that other processes can't reach it."""
    return isinstance(broker, StubBroker)


def is_redis(broker: Any) -> bool:
    """Return whether the broker uses Redis.

    Every broker with the attributes `client` and `namespace` counts, so that subclasses and wrappers are recognised.
    """
    return hasattr(broker, "client") and hasattr(broker, "namespace")
