"""Consume a Redis stream that an outbox writes to: call handlers for its entries, with exactly-once effect.

The consumers of a group share a stream. Each consumer reads new entries, calls the handlers through the inbox, and
acknowledges an entry when the handlers' transactions are committed. An entry that was read but not acknowledged,
because a handler failed or a consumer crashed, is taken over by another consumer. Entries are taken over one at a time.

`outbox.Consumer` is the class in this package; the command `outbox consume` runs it.
"""

from __future__ import annotations

from outbox.consumer.consumer import Consumer

__all__ = ["Consumer"]
