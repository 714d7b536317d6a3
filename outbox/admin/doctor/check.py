"""What bites in production, looked at before it does: checks, and what each has found.

A check is a function of a `Context` that yields findings. What it found and what to do about it are a sentence each;
neither holds a password, a payload or the text of anybody's query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outbox.admin.overview import Overview, overview
from outbox.storage.status import VERY_LATE

if TYPE_CHECKING:
    from outbox.core import Outbox

# From good to bad. A note is worth knowing, and nothing is wrong.
OK, NOTE, WARNING, PROBLEM = LEVELS = ("ok", "note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found, how bad that is, and what to do about it."""

    level: str
    what: str
    advice: str | None = None
    check: str = ""


def ok(what: str) -> Finding:
    return Finding(OK, what)


def note(what: str, advice: str | None = None) -> Finding:
    return Finding(NOTE, what, advice)


def warning(what: str, advice: str) -> Finding:
    return Finding(WARNING, what, advice)


def problem(what: str, advice: str) -> Finding:
    return Finding(PROBLEM, what, advice)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on something is worth a word."""

    oldest_postgres: tuple[int, ...] = (12,)
    oldest_redis: tuple[int, ...] = (6, 2)
    clock_seconds: float = 5.0
    # No single statement of a check may take longer: somebody may hold a lock on the table.
    statement_seconds: float = 10.0
    # Transactions that have been open for so long, and snapshots that are so many transactions old.
    open_seconds: float = 300.0
    open_too_long_seconds: float = 3600.0
    snapshot_age: int = 1_000_000
    dead_rows: int = 10_000
    free_bytes: int = 256 * 1024 * 1024
    used_memory: float = 0.9
    # An event that has been due for so long is late; a lease that ran out so long ago should have been noticed.
    late_seconds: float = VERY_LATE.total_seconds()
    expired_seconds: float = 60.0
    growing_minutes: int = 10
    payload_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Context:
    """What checks look at."""

    box: Outbox
    # Also what takes long.
    thorough: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    # Whether the application has set a broker: it carries the wake-ups then.
    has_own_broker: bool = False

    @cached_property
    def overview(self) -> Overview:
        """How things stand, asked once for all checks."""
        return overview(self.box.dialect)

    @cached_property
    def redis(self) -> Any:
        """A client of OUTBOX_REDIS_URL, which is set."""
        from outbox.storage.redis_client import make_client  # an extra

        assert self.box.settings.redis_url is not None  # noqa: S101  (for the type checker)
        return make_client(self.box.settings.redis_url)

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.box.dialect.run(statement, parameters).fetchall()
        return found

    @property
    def on_postgres(self) -> bool:
        return self.box.dialect.name == "postgres"


Look = Callable[[Context], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A look at one thing. `needs` are checks that must have found no problem, or this one would only repeat it."""

    name: str
    look: Look
    needs: tuple[str, ...] = ()
    # The database that it is about; None: any.
    only_on: str | None = None
