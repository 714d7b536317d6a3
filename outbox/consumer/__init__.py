"""The other end of a Redis stream: entries become events again, and handlers have their effect once.

The consumers of a group share a stream. Each reads new entries, gives them to the handlers through the inbox, and
acknowledges what is committed. What was fetched and not acknowledged, because a handler failed or a consumer died, is
taken over, one at a time, by whoever finds it.
"""

from __future__ import annotations

from outbox.consumer.consumer import Consumer

__all__ = ["Consumer"]
