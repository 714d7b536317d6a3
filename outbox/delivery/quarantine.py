"""Deliver an event whose lease expired alone: alone in its batch, and alone in its process.

Such an event may be what killed the worker that had it, and an event that kills its worker also costs an attempt for
all other events that the process has in flight. So it is claimed only while this process has no other batch in flight,
and no other batch begins in its first seconds. After those it is treated as a call that takes long: other batches begin
beside it, so that a call that hangs does not stop its process. Events from expired leases still go one at a time,
unless one of them takes very long. A claim that was refused because of such an event is made up for later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.delivery.batch import Batch

# How long to wait for the other batches to finish: batches are about a second's work. A batch that has been in flight
# for longer has a call that takes long. The event from an expired lease is then delivered beside it, rather than never,
# and the other threads of the process don't have to wait.
PATIENCE_SECONDS = 1.5
# How long no other batch begins beside an event from an expired lease: an event that kills its worker does so at once.
ALONE_SECONDS = 2.0

Claim = Callable[[bool], Batch | None]


class Quarantine:
    """The batches that this process has in flight; it decides which claims may include events from expired leases."""

    def __init__(self, search_every: float) -> None:
        # While other batches are always in flight, claims include expired leases this often all the same. And an event
        # from an expired lease that has been in flight for as long no longer keeps the next one waiting.
        self._search_every = search_every
        self._searched_at = time.monotonic()
        self._changed = threading.Condition()
        self._in_flight: dict[object, float] = {}  # the batches, and since when
        self._searching: int | None = None  # the thread whose claim includes expired leases
        self._quarantined: dict[object, float] = {}  # those of them from expired leases, and since when
        self._refused_a_claim = False

    @contextmanager
    def claiming(self, claim: Claim, claim_again_in: Callable[[float], None]) -> Iterator[Batch | None]:
        """Claim a batch, and count it as in flight until the block ends.

        `claim` is called with whether it may include events from expired leases. `claim_again_in` is called with a
        number of seconds if no claim may begin now: after so long one may.
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
            # Wait for the other claim, then claim: what commits meanwhile must not be missed, and a claim is short.
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
        return 0.0 if newest is None else newest + ALONE_SECONDS - time.monotonic()

    def _may_search(self, token: object) -> bool:
        """Return whether this claim may include events from expired leases."""
        now = time.monotonic()
        if any(now - since < self._search_every for since in self._quarantined.values()):
            return False  # the one in flight may still kill this process, and would cost the next one an attempt
        return not self._recent_batches(token) or now - self._searched_at >= self._search_every

    def _wait_for_other_batches(self, token: object) -> None:
        with self._changed:
            while others := self._recent_batches(token):
                self._changed.wait(min(others) + PATIENCE_SECONDS - time.monotonic())

    def _recent_batches(self, token: object) -> list[float]:
        """Return since when each other batch is in flight, without those that take long."""
        recent = time.monotonic() - PATIENCE_SECONDS
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
        """Count the batch as in flight no longer; return whether a claim was refused because of it."""
        with self._changed:
            del self._in_flight[token]
            was_quarantined = self._quarantined.pop(token, None) is not None
            refused_a_claim = was_quarantined and self._refused_a_claim
            if was_quarantined:
                self._refused_a_claim = False
            self._changed.notify_all()
            return refused_a_claim
