"""The event object that destinations receive: made from a claimed row, or from an entry that a consumer has read.

A job (a Dramatiq message) and a run of a periodic function are claimed from the same table, and are Event objects too:
`kind` tells them apart.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self
from uuid import UUID

from outbox.encryption.cipher import Cipher, decrypt
from outbox.encryption.stored_text import START
from outbox.events.encoding import EMPTY
from outbox.events.event_types import event_types
from outbox.storage import progress, timestamp
from outbox.storage.dialect import Row
from outbox.storage.ids import as_uuid
from outbox.storage.models import EVENT
from outbox.text import visible

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Without a type, `Event` is `Event[Any]`.
    D_co = TypeVar("D_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    D_co = TypeVar("D_co", covariant=True)

UUID_LENGTH = 36  # with its hyphens


class Event(Generic[D_co]):
    """One event. `body` is the payload's JSON as it was emitted; `payload` and `headers` are decoded on first use.

    `Event[OrderPlaced]` is an event whose `data` is an OrderPlaced.
    """

    # A worker makes thousands of events a second. Slots save a dictionary for each of them.
    __slots__ = (
        "_claimed_at", "_created_at", "_data", "_headers", "_headers_text", "_id", "_payload", "_payload_text",
        "_progress", "_progress_text", "aggregate_id", "aggregate_type", "attempt", "claims", "correlation_id",
        "destinations_version", "due_at", "event_type", "from_expired_lease", "idempotency_key", "kind", "max_attempts",
        "order_state", "ordering_key", "position", "row_id", "seq", "span", "tenant_id",
    )  # fmt: skip

    def __init__(self, row: Row) -> None:
        (
            self.row_id,
            self.seq,
            self.aggregate_type,
            self.aggregate_id,
            self.event_type,
            self.ordering_key,
            self._payload_text,
            self._headers_text,
            self.correlation_id,
            self.tenant_id,
            self.idempotency_key,
            self.claims,
            self.max_attempts,
            self._progress_text,
            self.due_at,
            self._created_at,
            self._claimed_at,
            self.kind,
            self.order_state,
            self.destinations_version,
            self.from_expired_lease,
        ) = row
        # The number of this attempt at the destination that is called, from 1. Delivery sets it before each call.
        self.attempt: int = 1
        # The event's index in the batch that it was claimed with. (`seq` may repeat in a batch if the database's
        # sequence was reset.)
        self.position: int = 0
        # The OpenTelemetry span of the delivery, while a destination is called, if an SDK is set up.
        self.span: Any = None
        self._id: UUID | None = None
        self._payload: dict[str, Any] | None = None
        self._headers: dict[str, Any] | None = None
        self._progress: dict[str, Any] | None = None

    @classmethod
    def received(
        cls,
        *,
        id: UUID,
        event_type: str,
        aggregate_type: str,
        aggregate_id: str,
        body: str,
        headers: str,
        correlation_id: str | None,
        tenant_id: str | None,
        created_at: datetime,
        attempt: int,
        max_attempts: int,
        ordering_key: str | None = None,
        seq: int = 0,
    ) -> Self:
        """Make an event from an entry of a stream or queue, which another service's outbox has published.

        Without an ordering key it has no `seq`. Its id serves as its idempotency key. When it was due and claimed is
        not known: both are the time of its creation.
        """
        about = (aggregate_type, aggregate_id, event_type, ordering_key)
        content = (body, headers, correlation_id, tenant_id, str(id))
        moments = (created_at, created_at, created_at)
        event = cls((str(id), seq, *about, *content, attempt, max_attempts, None, *moments, EVENT, None, None, False))
        event.attempt = attempt
        return event

    def copy(self) -> Self:
        """Return another object of the same event, whose payload and headers are not decoded yet.

        `copy.copy` took ten times as long.
        """
        other = type(self)(
            (
                self.row_id, self.seq, self.aggregate_type, self.aggregate_id, self.event_type, self.ordering_key,
                self._payload_text, self._headers_text, self.correlation_id, self.tenant_id, self.idempotency_key,
                self.claims, self.max_attempts, self._progress_text, self.due_at, self._created_at, self._claimed_at,
                self.kind, self.order_state, self.destinations_version, self.from_expired_lease,
            )
        )  # fmt: skip
        other.position = self.position
        return other

    # The payload and the headers, as JSON.
    _payload_text: str
    _headers_text: str
    # The id as the database returned it.
    row_id: str
    seq: int
    # The row's `next_attempt_at` when it was claimed, as the driver returned it. A retry changes the row, not this.
    due_at: Any
    aggregate_type: str
    aggregate_id: str
    event_type: str
    ordering_key: str | None
    correlation_id: str | None
    tenant_id: str | None
    idempotency_key: str
    # How often a worker has claimed the event, this claim included. (Each destination counts its own attempts.)
    claims: int
    max_attempts: int
    # "event", "job" or "run" (see `storage/models.py`).
    kind: str
    # Null if the event has no ordering key, or its place in the order no longer matters (see `storage/models.py`).
    order_state: str | None
    # The version of the table of recorded destinations when the event was claimed. If this process has read an older
    # version, it reads the table again before it delivers the event.
    destinations_version: int | None
    # Whether another worker had claimed the event before, and its lease has expired.
    from_expired_lease: bool

    @property
    def id(self) -> UUID:
        if self._id is None:
            self._id = as_uuid(self.row_id)
        return self._id

    @property
    def id_text(self) -> str:
        """Return the id in its usual form, with hyphens. PostgreSQL returns that form, so it needs no conversion."""
        return self.row_id if len(self.row_id) == UUID_LENGTH else str(self.id)

    @property
    def is_ordered(self) -> bool:
        """Return whether the event's place among the events of its ordering key matters."""
        return self.order_state is not None

    @property
    def is_encrypted(self) -> bool:
        """Return whether the payload or the headers are still as an emitter with OUTBOX_ENCRYPTION_KEYS stored them."""
        return self._payload_text.startswith(START) or self._headers_text.startswith(START)

    def decrypt(self, cipher: Cipher | None) -> None:
        """Replace the encrypted texts by those that were emitted; raise DecryptionError if that is not possible."""
        self._payload_text, self._headers_text = decrypt(cipher, self.id, self._payload_text, self._headers_text)

    @property
    def body(self) -> bytes:
        """Return the payload exactly as it was emitted, the same at every attempt."""
        return self._payload_text.encode()

    @property
    def payload(self) -> dict[str, Any]:
        if self._payload is None:
            self._payload = dict(json.loads(self._payload_text))
        return self._payload

    @property
    def headers(self) -> dict[str, Any]:
        if self._headers is None:
            self._headers = dict(json.loads(self._headers_text))
        return self._headers

    @property
    def data(self) -> D_co:
        """Return the payload as an object of the class that `outbox.event` has declared, upcast to its latest version.

        Raise UnreadableEvent if that is not possible, and NewerEvent if newer code is needed.
        """
        try:
            return self._data
        except AttributeError:  # the slot is empty: the data was not read yet
            pass
        self._data: D_co = event_types.read(self.event_type, str(self._payload_text), self.headers)
        return self._data

    @property
    def has_headers(self) -> bool:
        return bool(self._headers_text != EMPTY)

    @property
    def has_progress(self) -> bool:
        return self._progress_text is not None

    @property
    def progress(self) -> dict[str, Any]:
        """Return the column `progress`, decoded: the event's state at each destination, from earlier attempts."""
        if self._progress is None:
            self._progress = {} if self._progress_text is None else dict(json.loads(self._progress_text))
        return self._progress

    @property
    def created_at(self) -> datetime:
        return timestamp.from_database(self._created_at)

    @property
    def claimed_at(self) -> datetime:
        """Return when the event was claimed, by the database's clock."""
        return timestamp.from_database(self._claimed_at)

    @property
    def scheduled_at(self) -> datetime | None:
        """Return when the event was first due, or None if it was due as soon as it was emitted."""
        if self._progress_text is None and self.due_at == self._created_at:
            return None  # the usual case
        # A retry changes the row's due time. So the entries in `progress` keep the first one; without entries that were
        # put off, the row's due time is the first one.
        found = progress.first_due_at(self.progress)
        if found is None and not progress.was_put_off(self.progress):
            found = timestamp.from_database(self.due_at)
        return None if found == self.created_at else found

    def waited(self, since_claim: float) -> float:
        """Return how many seconds ago the event was first due: when it was emitted, or at `deliver_after`.

        `since_claim` is the number of seconds since the claim. The usual case is fast: it subtracts two times of one
        row, which have the same time zone. Subtracting times of different zones takes four times as long.
        """
        since, claimed_at = self.due_at, self._claimed_at
        if self._progress_text is not None:
            scheduled_at = self.scheduled_at
            since, claimed_at = self.created_at if scheduled_at is None else scheduled_at, self.claimed_at
        elif isinstance(since, str):
            since, claimed_at = timestamp.from_database(since), self.claimed_at
        seconds: float = (claimed_at - since).total_seconds() + since_claim
        return seconds if seconds > 0 else 0.0

    def __repr__(self) -> str:
        """Return the event for logs, as one line of printable characters: its names may come from users."""
        if self.kind != EVENT:
            return visible(f"<{self.kind.capitalize()} {self.event_type} {self.id}>")
        return visible(f"<Event {self.event_type} {self.aggregate_type}:{self.aggregate_id} {self.id}>")
