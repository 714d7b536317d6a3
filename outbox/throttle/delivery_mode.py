"""The two ways to deliver a batch; delivery and the limits per destination act on the difference."""

from __future__ import annotations

from enum import Enum, auto


class DeliveryMode(Enum):
    """How long the caller waits for slow destinations, and how much one of them is given at a time."""

    # A worker claims batch after batch. It does not wait for a slow destination: that goes on in a thread of its own,
    # and is given at most a second's work at a time, in a limited number of threads. A full batch means that there is
    # more than one worker's share, so another worker is notified.
    DRAIN = auto()
    # A call (`process_pending_events`, inline) claims one batch, and returns when all of it is delivered or put off.
    ONE_BATCH = auto()
