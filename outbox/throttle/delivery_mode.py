"""The two ways to deliver a batch: in a worker's drain, or for a caller that waits. Throttles differ by mode too."""

from __future__ import annotations

from enum import Enum, auto


class DeliveryMode(Enum):
    """Whether delivery waits for slow destinations, and how many events a destination gets at a time."""

    # A worker claims batch after batch while events are due. It does not wait for a slow destination: a thread goes on
    # with the events of that destination, and the number of these threads is limited. A destination gets at most about
    # a second's work at a time. After a full batch, another worker is notified, because more events may be due than one
    # worker can deliver.
    DRAIN = auto()
    # A call (`process_pending_events`, inline) claims one batch, and returns when all its events are delivered or put
    # off.
    ONE_BATCH = auto()
