"""The life of an event, in so few lines that anybody can check them. Times are minutes; the clock is the test's."""

from dataclasses import dataclass
from uuid import UUID

from outbox.models import DELIVERED, FAILED, PENDING, SENDING

WAITING = "waiting"
LEASE, BACKOFF, MAX_AGE = 10, 60, 72 * 60


@dataclass
class Place:
    """An event at one of its destinations."""

    state: str = WAITING
    attempts: int = 0
    since: int | None = None
    not_before: int | None = None

    def is_due(self, now: int) -> bool:
        return self.state == WAITING and (self.not_before is None or self.not_before <= now)

    def answered(self, outcome: str, now: int, max_attempts: int) -> None:
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
    ended: int | None = None

    def is_leased(self, now: int) -> bool:
        return self.lease is not None and self.lease_ends > now

    def is_free(self, now: int) -> bool:
        return self.due is not None and self.due <= now and not self.is_leased(now)

    def claimed(self, lease: UUID, now: int) -> None:
        self.status, self.attempts, self.lease, self.lease_ends = SENDING, self.attempts + 1, lease, now + LEASE

    def given_back(self) -> None:
        self.status, self.attempts, self.lease = PENDING, self.attempts - 1, None

    def settled(self, now: int) -> None:
        """As its destinations say: delivered if all have it, failed if one failed and none is left to try."""
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

    def begin_again(self, now: int) -> None:
        self.status, self.attempts, self.due, self.ended = PENDING, 0, now, None
