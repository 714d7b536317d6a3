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


def describe_broker(broker: Any) -> str:
    """Return a text that is the same in every process that uses this broker, and differs for most other brokers.

    It has no address: processes on different hosts may use different addresses for the same server.
    """
    if is_in_process(broker):
        return "in-process"
    return f"redis:{broker.namespace}" if is_redis(broker) else type(broker).__name__
