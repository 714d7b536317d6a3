"""The format of the column `progress`: the state of an event at each destination.

The column holds a JSON object with one entry per destination. It is written only if something remains to be done after
an attempt; otherwise it is null. This module is the only one that reads and writes the entries. The delivery code
decides what the next entry is (`delivery/retry.py`). Operators' actions, the doctor and the pages read entries here.

Workers of two versions share the table while a new version is rolled out. So a reader ignores the keys that it does not
know, and every key may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Self

import peewee

from outbox.storage import timestamp
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent

# The states of an entry, besides "delivered" and "failed", which are statuses of an event too.
WAITING = "waiting"
# The destination was retired before it had the event: its entry has ended, and has not failed.
RETIRED = "retired"

# Names in `progress` that stand for something other than one destination.
# Every destination that has no entry of its own: written when an event is replayed to one destination only.
OTHER_DESTINATIONS = "(others)"
# No destination wants the event; the entry is removed as soon as a destination does.
NO_DESTINATION = "(nobody)"
PLACEHOLDERS = frozenset((NO_DESTINATION, OTHER_DESTINATIONS))

# Reason codes: why an entry waits, for readers that must not depend on the text of an error.
NOT_REGISTERED = "not_registered"
MISSING_KEY = "missing_key"
# An operator has paused, or throttled, the destination.
PAUSED = "paused"
THROTTLED = "throttled"
# The payload does not fit the class that is declared for it, or this code is older than the event.
UNREADABLE = "unreadable"
NEWER_VERSION = "newer_version"
# Entries that were written before there were reason codes have errors that end with this text.
_NOT_REGISTERED_TEXT = " is not registered in this worker"

Json = dict[str, Any]

# The keys of an entry that hold times.
_TIMES = ("since", "not_before", "held_since", "first_due")


@dataclass(frozen=True, slots=True)
class ProgressEntry:
    """The state of one event at one destination."""

    state: str = WAITING
    attempts: int = 0
    # How often in a row the destination was unavailable.
    waits: int = 0
    # How often the event was claimed by a worker that does not have this destination.
    absences: int = 0
    # The time of the first attempt without success.
    since: datetime | None = None
    # How much of the time since then does not count towards OUTBOX_MAX_AGE_HOURS: a RetryLater or a receiver asked for
    # the wait, or no worker had the destination.
    asked_seconds: float = 0.0
    not_before: datetime | None = None
    error: str | None = None
    # One of the reason codes, or None.
    reason: str | None = None
    # For how many seconds the destination had been paused in all, at `since` (`destinations/controls.py`).
    paused_before: float = 0.0
    # Since when the event waits behind an earlier one of its ordering key, if it was tried before.
    held_since: datetime | None = None
    # Whether an operator lets later events of its ordering key go on, although the event has failed here.
    skipped: bool = False

    @property
    def is_open(self) -> bool:
        return self.state == WAITING

    @property
    def is_untried(self) -> bool:
        """Return whether the destination was not called yet."""
        return self.is_open and self.attempts == self.waits == 0

    def is_due(self, now: datetime) -> bool:
        return self.is_open and (self.not_before is None or self.not_before <= now)

    def still_due(self, now: datetime) -> Self:
        """Return the entry of a destination that was due and not tried: it stays due. This counts as no attempt."""
        return self if self.not_before is not None else replace(self, not_before=now)

    @property
    def may_be_tried_sooner(self) -> bool:
        """Return whether trying it before its time does no harm, because it was not refused (`storage/sooner.py`)."""
        return self.is_open and (self.waits > 0 or self.reason in (PAUSED, THROTTLED))

    def due_sooner(self) -> Self:
        """Return the entry as due now if it may be tried sooner."""
        return replace(self, not_before=None, reason=None) if self.may_be_tried_sooner else self

    def tried_without_success(
        self,
        *,
        attempts: int,
        waits: int,
        since: datetime,
        asked_seconds: float,
        not_before: datetime,
        error: str,
        paused_before: float,
    ) -> Self:
        """Return the entry after an attempt without success, after which it waits.

        It is written out because `dataclasses.replace` takes twice as long, and an outage needs this for every event.
        """
        return type(self)(
            self.state, attempts, waits, self.absences, since, asked_seconds, not_before, error, None, paused_before,
            self.held_since, self.skipped,
        )  # fmt: skip

    def postponed(self, until: datetime, *, reason: str | None = None) -> Self:
        """Return the entry of a destination whose throttle admits other events first. This counts as no attempt."""
        return replace(self, not_before=until, reason=reason)

    def paused(self, until: datetime) -> Self:
        """Return the entry of a destination that an operator has paused. This counts as no attempt."""
        return replace(self, not_before=until, reason=PAUSED)

    def held_back(self, now: datetime) -> Self:
        """Return the entry of a destination at which the event waits behind an earlier one of its ordering key.

        This counts as no attempt. A new entry does not change, because there is nothing to remember. An entry that
        waits already keeps the time since when it waits. It no longer waits for the end of a pause.
        """
        entry = replace(self, reason=None) if self.reason in (PAUSED, THROTTLED) else self
        return entry if self.since is None or self.held_since is not None else replace(entry, held_since=now)

    def no_longer_held_back(self, now: datetime) -> Self:
        """Return the entry when the event goes on. The time it waited does not count towards OUTBOX_MAX_AGE_HOURS."""
        if self.held_since is None:
            return self
        waited = max(0.0, (now - self.held_since).total_seconds())
        return replace(self, asked_seconds=self.asked_seconds + waited, held_since=None)

    def retired(self) -> Self:
        """Return the entry after its destination was retired: it has ended, neither delivered nor failed."""
        return replace(self, state=RETIRED, not_before=None, error=None, reason=None)

    def reopened(self) -> Self:
        """Return the entry as waiting again if it had ended because its destination was retired."""
        return replace(self, state=WAITING) if self.state == RETIRED else self

    def to_json(self) -> dict[str, Any]:
        fields = {
            "state": self.state,
            "attempts": self.attempts,
            "waits": self.waits,
            "absences": self.absences,
            "since": None if self.since is None else timestamp.to_text(self.since),
            "asked_seconds": self.asked_seconds,
            "not_before": None if self.not_before is None else timestamp.to_text(self.not_before),
            "error": self.error,
            "reason": self.reason,
            "held_since": None if self.held_since is None else timestamp.to_text(self.held_since),
            "skipped": self.skipped,
            "paused_before": self.paused_before,
        }
        return {name: value for name, value in fields.items() if value is not None and value != 0}

    @classmethod
    def from_json(cls, entry: Json) -> Self:
        since, not_before, held_since = entry.get("since"), entry.get("not_before"), entry.get("held_since")
        return cls(
            state=entry.get("state", WAITING),
            attempts=entry.get("attempts", 0),
            waits=entry.get("waits", 0),
            absences=entry.get("absences", 0),
            since=None if since is None else timestamp.from_database(since),
            asked_seconds=entry.get("asked_seconds", 0.0),
            not_before=None if not_before is None else timestamp.from_database(not_before),
            error=entry.get("error"),
            reason=_reason(entry),
            held_since=None if held_since is None else timestamp.from_database(held_since),
            skipped=entry.get("skipped", False),
            paused_before=entry.get("paused_before", 0.0),
        )


def _reason(entry: Json) -> str | None:
    reason: str | None = entry.get("reason")
    if reason is None and str(entry.get("error", "")).endswith(_NOT_REGISTERED_TEXT):
        return NOT_REGISTERED
    return reason


NEW = ProgressEntry()


@cache
def delivered(attempts: int) -> ProgressEntry:
    """Return the entry of a destination that has the event. It is cached, because most deliveries end like this."""
    return ProgressEntry(state=DELIVERED, attempts=attempts)


def not_registered(name: str) -> str:
    """Return the error of an entry whose destination is not registered in this worker, nor recorded by another."""
    return f"{name!r}{_NOT_REGISTERED_TEXT}"


def parse(progress: Mapping[str, Json] | None) -> dict[str, ProgressEntry]:
    """Return the entries by destination, from the decoded JSON of the column."""
    return {} if progress is None else {name: ProgressEntry.from_json(entry) for name, entry in progress.items()}


def encode(entries: Mapping[str, ProgressEntry], scheduled_at: datetime | None = None) -> str:
    """Return the text of the column.

    `scheduled_at` is when the event was first due, if that was not when it was emitted. Each retry changes the due time
    in the row, so the entries that wait keep the first one.
    """
    first_due = {} if scheduled_at is None else {"first_due": timestamp.to_text(scheduled_at)}
    return json.dumps({name: entry.to_json() | (first_due if entry.is_open else {}) for name, entry in entries.items()})


def first_due_at(progress: Mapping[str, Json]) -> datetime | None:
    """Return when the event was first due, if the entries say so. An entry that is null is skipped."""
    for entry in progress.values():
        if entry and "first_due" in entry:
            return timestamp.from_database(entry["first_due"])
    return None


def was_put_off(progress: Mapping[str, Json]) -> bool:
    """Return whether the row's due time is that of a retry.

    It is not after an operator's retry: then the entries start again, without times.
    """
    return any(entry and "not_before" in entry for entry in progress.values())


def restarted(progress: Mapping[str, Json] | None) -> str | None:
    """Return the text of the column for a failed event that an operator retries.

    Destinations that have the event keep it. The others start again; they stay in the column by name, so that a worker
    that lacks one of them leaves the event to another worker.
    """
    if not progress:
        return None
    entries = parse(progress)
    return encode({name: entry if entry.state == DELIVERED else NEW for name, entry in entries.items()})


def tried_now(progress: Mapping[str, Json] | None) -> str | None:
    """Return the text of the column for an event that waits and that an operator wants to be tried now.

    The counts of the entries don't change. Return None if no entry waits for a retry; waiting for the end of a pause is
    no such wait.
    """
    entries = parse(progress)
    due = {
        name: replace(entry, not_before=None)
        for name, entry in entries.items()
        if entry.is_open and entry.not_before is not None and entry.reason != PAUSED
    }
    return encode(entries | due, first_due_at(progress or {})) if due else None


def replayed_to(destination: str, delivered_to: Collection[str]) -> str:
    """Return the text of the column for a delivered event that an operator replays to one destination only.

    `delivered_to` are the destinations that have it. Destinations that are registered later don't get it either.
    """
    done = ProgressEntry(state=DELIVERED)
    return encode(dict.fromkeys((*delivered_to, OTHER_DESTINATIONS), done) | {destination: NEW})


def skipped(progress: Mapping[str, Json] | None) -> str | None:
    """Return the text of the column after an operator has skipped the event where it has failed; None if nowhere."""
    entries = {} if progress is None else dict(progress)
    names = [name for name, entry in failed(progress).items() if not entry.skipped]
    return json.dumps(entries | {name: {**entries[name], "skipped": True} for name in names}) if names else None


def has_failed_entry() -> peewee.Expression:
    """Return the condition that the event has failed at a destination; its state at the others does not matter.

    `encode` writes the state first, and quotes in an error are escaped: so the text is found in such an entry only.
    """
    return OutboxEvent.progress.cast("text").contains('{"state": "failed"')


def moved_back(progress: Mapping[str, Json], by: timedelta) -> str:
    """Return the text of the column with every time in it moved into the past, as if so much time had passed."""
    moved = {
        name: entry
        | {key: timestamp.to_text(timestamp.from_database(entry[key]) - by) for key in _TIMES if key in entry}
        for name, entry in progress.items()
    }
    return json.dumps(moved)


def without_errors(progress: Mapping[str, Json]) -> str:
    """Return the text of the column for an event that is erased: an error may quote what the event held."""
    return json.dumps(
        {
            name: entry and {key: value for key, value in entry.items() if key != "error"}
            for name, entry in progress.items()
        }
    )


def failed(progress: Mapping[str, Json] | None) -> dict[str, ProgressEntry]:
    """Return the entries of the destinations at which the event has failed."""
    return {name: entry for name, entry in parse(progress).items() if entry.state == FAILED}


def is_not_delivered_to(destination: str, database: peewee.Database) -> peewee.SQL:
    """Return the SQL condition that the destination has an entry, and does not have the event yet."""
    return _state_condition(destination, database, "<>", DELIVERED)


def waits_at(destination: str, database: peewee.Database) -> peewee.SQL:
    """Return the SQL condition that the destination has an entry that waits for its next attempt."""
    return _state_condition(destination, database, "=", WAITING)


def _state_condition(destination: str, database: peewee.Database, operator: str, state: str) -> peewee.SQL:
    if isinstance(database, peewee.SqliteDatabase):
        found = "EXISTS (SELECT 1 FROM json_each(progress) AS p WHERE p.key = ? AND json_extract(p.value, '$.state')"
        return peewee.SQL(f"{found} {operator} ?)", (destination, state))
    return peewee.SQL(f"(progress -> %s ->> 'state') {operator} %s", (destination, state))
