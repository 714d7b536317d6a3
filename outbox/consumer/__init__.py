"""Consume a Redis stream, or a queue of RabbitMQ, that an outbox publishes to, with exactly-once effect.

The consumers of a group share a stream, and the consumers of a queue share the queue. Each consumer reads new entries,
calls the handlers through the inbox, and acknowledges an entry when the handlers' transactions are committed. An entry
that was read but not acknowledged, because a handler failed or a consumer crashed, is delivered to a consumer again.

`outbox.Consumer` is the class in this package; the command `outbox consume` runs it.
"""

from __future__ import annotations

from outbox.consumer.consumer import Consumer

__all__ = ["Consumer"]
