"""The model of an event's life, in so few lines that a reader can check them.

`Life.may` says when something can be done to an event; the methods below it say what the event is then. Times are in
minutes, by the test's own clock. The state machine in `machine.py` compares the table with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING

WAITING = "waiting"
LEASE, BACKOFF, MAX_AGE, RETENTION = 10, 60, 72 * 60, 20 * 60


@dataclass
class Place:
    """An event at one of its destinations."""

    state: str = WAITING
    attempts: int = 0
    since: int | None = None
    not_before: int | None = None

    def is_due(self, now: int) -> bool:
        return self.state == WAITING and (self.not_before is None or self.not_before <= now)

    def record(self, outcome: str, now: int, max_attempts: int) -> None:
        self.attempts += outcome != "unavailable"
        self.since = now if self.since is None else self.since
        self.not_before = now + BACKOFF
        too_old = outcome == "unavailable" and now - self.since >= MAX_AGE
        if outcome == "delivered":
            self.state = DELIVERED
        elif outcome == "failed" or too_old or (outcome == "retry" and self.attempts >= max_attempts):
            self.state = FAILED


@dataclass
class Life:
    """An event that was committed."""

    places: dict[str, Place]
    max_attempts: int
    due: int | None
    status: str = PENDING
    attempts: int = 0
    lease: UUID | None = None
    lease_ends: int = 0
    from_expired_lease: bool = False
    ended: int | None = None

    def may(self, what: str, now: int) -> bool:
        """Return whether that can be done; the holder of the lease may also renew, give back and settle."""
        free = self.lease is None or self.lease_ends <= now
        return {
            "claim": self.due is not None and self.due <= now and free,
            "retry": self.status == FAILED,
            "fail": self.due is not None and free,
            "replay": self.status == DELIVERED,
            "delete": self.due is None,
            "clean up": self.ended is not None and now - self.ended > RETENTION,
        }[what]

    def claim(self, lease: UUID, now: int) -> None:
        self.from_expired_lease = self.lease is not None  # the worker that had it did not settle
        self.status, self.attempts, self.lease, self.lease_ends = SENDING, self.attempts + 1, lease, now + LEASE

    @property
    def is_spent(self) -> bool:
        """Return whether its workers died, or lost it, as often as it may be attempted: then it fails unsent."""
        return self.from_expired_lease and self.attempts > max(self.max_attempts, 2)

    def renew(self, now: int) -> None:
        self.lease_ends = now + LEASE

    def give_back(self) -> None:
        self.status, self.attempts, self.lease = PENDING, self.attempts - 1, None

    def settle(self, outcomes: Mapping[str, str], now: int) -> None:
        """Record the outcomes: the event is delivered if all have it, failed if one failed and none is left to try."""
        if not outcomes and not self.is_spent:
            self.give_back()
            return
        for name, place in self.places.items():
            if name in outcomes:
                place.record(outcomes[name], now, self.max_attempts)
            elif place.state == WAITING and self.is_spent:
                place.state, place.attempts = FAILED, self.attempts - 1
            elif place.not_before is None:
                place.not_before = now  # its turn did not come: it is still due
        left = [place for place in self.places.values() if place.state == WAITING]
        self.attempts = max(place.attempts for place in left or self.places.values())
        if left:
            dues = [place.not_before for place in left if place.not_before is not None]
            self.status, self.due, self.lease = PENDING, min(dues), None
        else:
            states = {place.state for place in self.places.values()}
            self.end(DELIVERED if states == {DELIVERED} else FAILED, now)

    def end(self, status: str, now: int) -> None:
        self.status, self.due, self.lease, self.ended = status, None, None, now

    def retry(self, now: int) -> None:
        """Start again at the destinations that do not have it."""
        places = {name: place if place.state == DELIVERED else Place() for name, place in self.places.items()}
        self.begin_again(places, now)

    def replay(self, to: str | None, now: int) -> None:
        """Start again at all destinations, or at one."""
        self.begin_again({name: Place(WAITING if to in (None, name) else DELIVERED) for name in self.places}, now)

    def begin_again(self, places: dict[str, Place], now: int) -> None:
        self.places, self.status, self.attempts, self.due, self.ended = places, PENDING, 0, now, None
