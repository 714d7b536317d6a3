"""Count why events have failed: by destination, and by cause.

Errors that differ only in ids, numbers, quoted values or a body are one cause: `HTTP 500 Server Error: {…}` is one,
whatever the body says. The newest failed events are looked at, and grouped by the database as far as their errors are
the same. Often they are not, so the number of events limits how much is sent here: of 10,000 events with an error of
their own each, an overview took 550 ms, and of 2,000 it takes a fifth of that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from outbox.operations.count import Count
from outbox.storage import timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.text import shorten

# This many of the newest failed events are looked at.
MOST_EVENTS = 2_000
# This many causes are shown.
MOST_CAUSES = 10
ERROR_LENGTH = 160
# This much of an error is read.
READ_LENGTH = 400

# Patterns for the parts in which errors of the same cause may differ, and their replacements. The order matters: a body
# is replaced as a whole.
_REPLACEMENTS = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, replacement, flags in (
        # A JSON body; the third is one that was cut.
        (r"\{\s*[\"{\[].*\}", "{…}", re.DOTALL),
        (r"\[\s*[\"{\[].*\]", "[…]", re.DOTALL),
        (r"([{\[])\s*[\"{\[].*", r"\1…", re.DOTALL),
        (r"<(?:!doctype|html|\?xml)\b.*", "<…>", re.DOTALL | re.IGNORECASE),
        # Quoted values; an apostrophe inside a word, as in "can't", begins none.
        (r"(?<!\w)'[^'\n]*'(?!\w)", "'…'", 0),
        (r'"[^"\n]*"', '"…"', 0),
        (r"`[^`\n]*`", "`…`", 0),
        (r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", "…", re.IGNORECASE),
        (r"\b0x[0-9a-f]+\b", "…", re.IGNORECASE),
        (r"[^\s<>\"'(,;:=]+@[\w.-]+\w", "…", 0),
        # An id of letters and digits: cus_8fk2M1.
        (r"\b(?=\w*\d)(?=\w*[A-Za-z])\w{8,}\b", "…", 0),
    )
)
# A number is a value, unless it says what the error is: HTTP 503, [Errno 111], exit code 2.
_NUMBER = re.compile(r"(\b(?:HTTP|errno|status|code)[ =:]+)?(?<![\w.…])\d[\d.,:]*(?<=\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """How many events or jobs failed at one destination for the same cause, and when the first and the last failed."""

    destination: str
    error: str
    events: int
    first_at: datetime | None = field(default=None, compare=False)
    last_at: datetime | None = field(default=None, compare=False)
    # The newest of them.
    example: UUID | None = field(default=None, compare=False)
    # How many of them failed in which hour; hours are counted from 1970.
    by_hour: Mapping[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed events that were looked at, their most frequent causes, and how many there are at each destination.

    An event that failed at two destinations counts at both. `more_causes` and `more_events` are those left out of
    `causes`.
    """

    looked_at: Count
    causes: list[Failure]
    more_causes: int
    more_events: int
    by_destination: Mapping[str, Count]


def read_failures(dialect: Dialect, cap: int = MOST_EVENTS, most_causes: int = MOST_CAUSES) -> Failures:
    """Return what the newest failed events, up to `cap`, have failed of."""
    with dialect.connection():
        rows = dialect.run(dialect.statements.failures, (READ_LENGTH, cap + 1, READ_LENGTH)).fetchall()
    looked_at = Count.up_to(cap, 0 if not rows else int(rows[0][-1]))
    causes = sorted(_by_cause(rows), key=lambda each: each.events, reverse=True)
    at: Counter[str] = Counter()
    for each in causes:
        at[each.destination] += each.events
    return Failures(
        looked_at,
        causes[:most_causes],
        more_causes=len(causes[most_causes:]),
        more_events=sum(each.events for each in causes[most_causes:]),
        by_destination={name: Count(min(number, cap), looked_at.at_least) for name, number in at.items()},
    )


def _by_cause(rows: Iterable[tuple[str, str | None, int, Any, Any, str, int | None, int]]) -> list[Failure]:
    """Return one failure for the rows of each destination and cause."""
    found: dict[tuple[str, str], _Cause] = {}
    for destination, error, events, first, last, newest, hour, _ in rows:
        cause = found.setdefault((destination, cause_of(error or "")), _Cause(first, last, newest))
        cause.events += events
        cause.first_at, cause.last_at = min(cause.first_at, first), max(cause.last_at, last)
        cause.newest = max(cause.newest, newest)
        if hour is not None:
            cause.by_hour[hour] += events
    return [each.failure(*key) for key, each in found.items()]


@dataclass(slots=True)
class _Cause:
    """What the rows of one destination and cause add up to; times and ids are as the database returned them."""

    first_at: Any
    last_at: Any
    newest: str
    events: int = 0
    by_hour: Counter[int] = field(default_factory=Counter)

    def failure(self, destination: str, error: str) -> Failure:
        first, last = map(timestamp.from_database, (self.first_at, self.last_at))
        return Failure(destination, error, self.events, first, last, as_uuid(self.newest), dict(self.by_hour))


@lru_cache(maxsize=16_384)
def cause_of(error: str) -> str:
    """Return what an error has in common with others of the same cause: "…" stands for what may differ."""
    text = error
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _NUMBER.sub(lambda match: match[0] if match[1] else "…", text)
    return shorten(" ".join(text.split()), ERROR_LENGTH)
