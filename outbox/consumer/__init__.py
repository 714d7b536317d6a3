"""Consume a Redis stream that an outbox writes: call handlers for its entries, with exactly-once effect.

The consumers of a group share a stream. Each reads new entries, calls the handlers through the inbox, and acknowledges
an entry when the handlers' transactions are committed. Entries that were read and not acknowledged, because a handler
failed or a consumer crashed, are taken over by another consumer, one at a time.

`outbox.Consumer` and the command `outbox consume` use it.
"""

from __future__ import annotations

from outbox.consumer.consumer import Consumer

__all__ = ["Consumer"]
