"""Define what all checks of `outbox doctor` share: findings, thresholds and the context of a run.

A check is a function that gets a `Context` and yields findings. A finding says in one sentence what was found, and in
another what to do about it. Neither contains a password, a payload or the text of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outbox.admin.overview import Overview, overview
from outbox.storage.status import LATE, VERY_LATE

if TYPE_CHECKING:
    from outbox.core import Outbox

# From good to bad. A note is worth knowing, but it does not mean that something is wrong.
OK, NOTE, WARNING, PROBLEM = LEVELS = ("ok", "note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found, how bad it is, and what to do about it."""

    level: str
    what: str
    advice: str | None = None
    check: str = ""
    # The same in a few words, without a capital and a full stop, for the verdict: `no worker is running`.
    brief: str = ""
    # The dashboard's page that shows more, or the filter for its list of events; empty if there is none.
    page: str = ""
    events: Mapping[str, str] = field(default_factory=dict)

    def as_data(self) -> dict[str, str | None]:
        """Return the finding for --json."""
        return {"level": self.level, "check": self.check, "what": self.what, "advice": self.advice, "brief": self.brief}


def ok(what: str) -> Finding:
    return Finding(OK, what)


def note(what: str, advice: str | None = None, **more: Any) -> Finding:
    return Finding(NOTE, what, advice, **more)


def warning(what: str, advice: str, **more: Any) -> Finding:
    return Finding(WARNING, what, advice, **more)


def problem(what: str, advice: str, **more: Any) -> Finding:
    return Finding(PROBLEM, what, advice, **more)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits beyond which a check reports something."""

    oldest_postgres: tuple[int, ...] = (12,)
    oldest_redis: tuple[int, ...] = (6, 2)
    # Difference between the clocks of the database and of this host.
    clock_seconds: float = 5.0
    # Statement timeout of the checks. Without it, a check would wait for as long as another session locks the table.
    statement_seconds: float = 10.0
    # For how long a session waits for a lock that another holds.
    lock_wait_seconds: float = 5.0
    # Age of an open transaction: from the first on it is a warning, from the second on a problem.
    open_seconds: float = 300.0
    open_too_long_seconds: float = 3600.0
    # Age of a replication slot's or standby's snapshot, in transactions.
    snapshot_age: int = 1_000_000
    # Number of dead rows in a table. Fewer are never reported.
    dead_rows: int = 10_000
    # Free space on the disk of an SQLite file.
    free_bytes: int = 256 * 1024 * 1024
    # Used part of Redis's maxmemory: 0.9 is 90 %.
    used_memory: float = 0.9
    # How long the oldest due event has been due: from the first on it is a warning, and from the second on a problem
    # if the backlog grows.
    late_seconds: float = LATE.total_seconds()
    very_late_seconds: float = VERY_LATE.total_seconds()
    # How long a destination has been paused.
    paused_seconds: float = 3600.0
    # How long an ordering key has been blocked by an event that has not failed.
    blocked_seconds: float = 3600.0
    # How long ago a lease expired without another worker claiming its event.
    expired_seconds: float = 60.0
    # How many of the last minutes decide whether the backlog grows.
    growing_minutes: int = 10
    # How long a worker may take to take a sweep: all its threads may be busy.
    sweep_seconds: float = 10.0
    # Payloads that one worker process may hold in memory.
    payload_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Context:
    """What the checks of one run share."""

    box: Outbox
    # Whether to run the slow checks as well.
    thorough: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    # Whether the application has set a Dramatiq broker of its own. If so, that broker carries the wake-ups (the
    # messages that tell a worker that events are due).
    has_own_broker: bool = False
    # The overview, if the caller has read it.
    given: Overview | None = None
    # Whether the process that runs the checks is compared with the others, as one that has the application's code.
    compares_itself: bool = True

    @cached_property
    def overview(self) -> Overview:
        """Return the overview, which is read once for all checks."""
        return overview(self.box.dialect) if self.given is None else self.given

    @cached_property
    def redis(self) -> Any:
        """Return a client for OUTBOX_REDIS_URL, which must be set."""
        from outbox.storage.redis_client import make_client  # optional dependency

        assert self.box.settings.redis_url is not None  # noqa: S101  (for the type checker)
        return make_client(self.box.settings.redis_url)

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run an SQL statement and return its rows."""
        rows: list[tuple[Any, ...]] = self.box.dialect.run(statement, parameters).fetchall()
        return rows

    @property
    def on_postgres(self) -> bool:
        return self.box.dialect.name == "postgres"


CheckFunction = Callable[[Context], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check. It is skipped if a check in `needs` has found a problem, since it would only report the same."""

    name: str
    run: CheckFunction
    needs: tuple[str, ...] = ()
    # The name of the dialect that the check is for; None means any dialect.
    only_on: str | None = None
    # Whether `outbox status` and the dashboard run the check as well. It reads nothing but the overview.
    everywhere: bool = False
