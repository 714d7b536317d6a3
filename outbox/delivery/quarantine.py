"""Deliver an event whose lease expired alone: alone in its batch, and alone in its process.

Such an event may be what killed the worker that had it, and an event that kills its worker also costs an attempt for
all other events that the process has in flight. So it is claimed only while this process has no other batch in flight,
and no other batch begins in its first seconds. After those seconds it is treated as a call that takes long: other
batches may begin beside it, so that a call that hangs does not stop the whole process. Events from expired leases are
still delivered one at a time, unless one of them takes very long. If a claim was refused because of such an event, a
worker is notified later to claim again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.delivery.batch import Batch

# How long to wait for the other batches to finish: a batch is about a second's work. A batch that has been in flight
# for longer has a slow call. Then the event from an expired lease is delivered beside that batch. Otherwise it might
# never be delivered, and the other threads of the process would have to wait, too.
PATIENCE_SECONDS = 1.5
# How long no other batch begins beside an event from an expired lease: an event that kills its worker does so at once.
ALONE_SECONDS = 2.0

Claim = Callable[[bool], Batch | None]


class Quarantine:
    """Knows the batches that this process has in flight, and decides which claims may include expired leases."""

    def __init__(
        self,
        search_every: float,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        alone_seconds: float = ALONE_SECONDS,
    ) -> None:
        # Claims include expired leases at least this often, even if other batches are always in flight. And after this
        # time in flight, an event from an expired lease no longer makes the next one wait.
        self._search_every = search_every
        self._patience_seconds = patience_seconds
        self._alone_seconds = alone_seconds
        self._searched_at = time.monotonic()
        self._changed = threading.Condition()
        self._in_flight: dict[object, float] = {}  # a token for each batch, and since when it is in flight
        self._searching: int | None = None  # the thread whose claim includes expired leases
        self._quarantined: dict[object, float] = {}  # those with an event from an expired lease
        self._refused_a_claim = False

    @contextmanager
    def claiming(self, claim: Claim, claim_again_in: Callable[[float], None]) -> Iterator[Batch | None]:
        """Claim a batch, and count it as in flight until the block ends.

        `claim` is called with whether it may include events from expired leases. If no claim may begin now,
        `claim_again_in` is called with the number of seconds after which one may.
        """
        token = object()
        batch = self._claim(token, claim, claim_again_in)
        try:
            yield batch
        finally:
            if batch is not None and self._remove(token):
                claim_again_in(0.0)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until this process has no batch in flight, at most so long; return whether it has none."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_flight, seconds)

    def _claim(self, token: object, claim: Claim, claim_again_in: Callable[[float], None]) -> Batch | None:
        me = threading.get_ident()
        with self._changed:
            if self._searching == me:
                return None  # called back from inside this thread's own claim
            # Wait for the other thread's claim, which is short, and then claim as well: events that were committed
            # after that claim began must not be missed.
            self._changed.wait_for(lambda: self._searching is None)
            if (alone := self._seconds_alone()) > 0:
                self._refused_a_claim = True
                claim_again_in(alone)
                return None
            include_expired_leases = self._may_search(token)
            self._searching = me if include_expired_leases else None
            self._in_flight[token] = time.monotonic()
        batch = None
        try:
            if include_expired_leases:
                self._wait_for_other_batches(token)
            batch = claim(include_expired_leases)
            return batch
        finally:
            self._claimed(token, batch, included_expired_leases=include_expired_leases)

    def _seconds_alone(self) -> float:
        """Return for how many more seconds no batch may begin beside the newest event from an expired lease."""
        newest = max(self._quarantined.values(), default=None)
        return 0.0 if newest is None else newest + self._alone_seconds - time.monotonic()

    def _may_search(self, token: object) -> bool:
        """Return whether this claim may include events from expired leases."""
        now = time.monotonic()
        if any(now - since < self._search_every for since in self._quarantined.values()):
            return False  # the event in flight may still kill this process, which would cost the next one an attempt
        return not self._recent_batches(token) or now - self._searched_at >= self._search_every

    def _wait_for_other_batches(self, token: object) -> None:
        with self._changed:
            while others := self._recent_batches(token):
                self._changed.wait(min(others) + self._patience_seconds - time.monotonic())

    def _recent_batches(self, token: object) -> list[float]:
        """Return since when each other batch is in flight; batches that take long are left out."""
        recent = time.monotonic() - self._patience_seconds
        return [since for other, since in self._in_flight.items() if other is not token and since > recent]

    def _claimed(self, token: object, batch: Batch | None, *, included_expired_leases: bool) -> None:
        with self._changed:
            if included_expired_leases:
                self._searching = None
                if batch is not None and batch.from_expired_lease:
                    self._quarantined[token] = time.monotonic()
                else:
                    self._searched_at = time.monotonic()
            if batch is None:
                del self._in_flight[token]
            self._changed.notify_all()

    def _remove(self, token: object) -> bool:
        """Remove a batch that is no longer in flight; return whether a claim was refused because of it."""
        with self._changed:
            del self._in_flight[token]
            was_quarantined = self._quarantined.pop(token, None) is not None
            refused_a_claim = was_quarantined and self._refused_a_claim
            if was_quarantined:
                self._refused_a_claim = False
            self._changed.notify_all()
            return refused_a_claim
