"""Find the sessions of PostgreSQL behind which others wait for locks, directly or one behind another.

If a transaction is idle, and a change of a table waits for it, every other reader of the table waits, too. The waiting
sessions are not the problem: they continue when the first session of the queue, its *root*, has ended. Nothing here
reads a table of the outbox, because such a statement could wait itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import peewee

from outbox.admin.durations import format_seconds
from outbox.errors import OutboxError
from outbox.storage.connect import POSTGRES_DEFAULTS
from outbox.storage.dialect import Dialect
from outbox.table_names import KINDS

# Every role can see in pg_locks which sessions wait. pg_stat_activity shows that only to some roles.
_WAITING = """
SELECT waiting.pid, pg_blocking_pids(waiting.pid), session.application_name,
    COALESCE(extract(epoch FROM clock_timestamp() - session.query_start), 0)::float8
FROM (SELECT DISTINCT pid FROM pg_locks WHERE NOT granted) AS waiting
JOIN pg_stat_activity AS session ON session.pid = waiting.pid AND session.datname = current_database()
"""
_SESSIONS = """
SELECT pid, application_name, COALESCE(state, ''), COALESCE(host(client_addr) || ':' || client_port, ''),
    COALESCE(extract(epoch FROM clock_timestamp() - COALESCE(state_change, xact_start)), 0)::float8
FROM pg_stat_activity WHERE pid = ANY (%s)
"""
# Those that have locked one of these tables in one of these modes. Once our own statement is cancelled, no session may
# be waiting for them.
_HOLDERS = """
SELECT DISTINCT pid FROM pg_locks
WHERE granted AND mode = ANY (%s) AND relation = ANY (SELECT to_regclass(name) FROM unnest(%s::text[]) AS given (name))
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# The modes beside which no other session can read a table, and those beside which none can change its rows.
READING = ("AccessExclusiveLock",)
WRITING = (*READING, "ExclusiveLock", "ShareRowExclusiveLock", "ShareLock")
_OWN_NAME = "SELECT current_setting('application_name')"
# pg_blocking_pids returns this for a prepared transaction, which has no session.
PREPARED = 0


@dataclass(frozen=True, slots=True)
class Root:
    """A session that waits for no lock, and behind which others wait."""

    pid: int
    application: str
    state: str
    # Where it comes from, as `ss -tnp` shows it there.
    client: str
    state_seconds: float
    # How many sessions wait behind it, how many of these are the outbox's own, and the longest time.
    waiting: int
    own_waiting: int
    waiting_seconds: float
    # Whether it belongs to a process of the outbox: ending it would only interrupt that process's work.
    is_own: bool

    @property
    def name(self) -> str:
        """Return, for example, `process 4711 of PostgreSQL (psql, idle in transaction for 12 min)`."""
        if self.pid == PREPARED:
            return "a prepared transaction"
        state = f"{self.state} for {format_seconds(self.state_seconds)}" if self.state else "of another role"
        return f"process {self.pid} of PostgreSQL ({self.application or 'no application_name'}, {state})"


@dataclass(frozen=True, slots=True)
class _Waiting:
    pid: int
    blockers: frozenset[int]
    application: str
    seconds: float


def read_roots(dialect: Dialect, *, locked: Iterable[str] = (), modes: Iterable[str] = READING) -> tuple[Root, ...]:
    """Return the roots of all queues for locks in this database, the longest queue first; none on SQLite.

    Include those that have locked one of the tables `locked` in one of these modes, even if no session waits for them
    any more.
    """
    if dialect.name != "postgres":
        return ()
    with dialect.connection():
        rows = dialect.run(_WAITING).fetchall()
        waiting = {pid: _Waiting(pid, frozenset(blockers), name, seconds) for pid, blockers, name, seconds in rows}
        behind = _behind_roots(waiting)
        if tables := list(locked):
            holders = {pid or PREPARED for (pid,) in dialect.run(_HOLDERS, (list(modes), tables)).fetchall()}
            behind |= {pid: [] for pid in holders - behind.keys() - waiting.keys()}
        if not behind:
            return ()
        sessions = {row[0]: row for row in dialect.run(_SESSIONS, (list(behind),)).fetchall()}
        own = {str(POSTGRES_DEFAULTS["application_name"]), dialect.run(_OWN_NAME).fetchone()[0]} - {""}
    roots = [_root(pid, sessions.get(pid), found, own) for pid, found in behind.items()]
    return tuple(sorted(roots, key=lambda each: each.waiting, reverse=True))


def describe_lock_timeout(dialect: Dialect) -> str:
    """Return why a statement has waited too long for a lock, and what has become of the action, as sentences."""
    try:
        roots = read_roots(dialect, locked=map(dialect.tables.qualified, KINDS), modes=WRITING)
    except (peewee.PeeweeException, OutboxError):
        roots = ()
    holder = roots[0].name if roots else "another session"
    return (
        f"{holder[0].upper()}{holder[1:]} holds a lock that this waited for. Nothing more was changed. End that "
        "transaction, or wait for its end, and try again; `outbox bulk` lists actions that can be resumed."
    )


def _behind_roots(waiting: Mapping[int, _Waiting]) -> dict[int, list[_Waiting]]:
    """Return the sessions that wait behind each root. A deadlock has no root; PostgreSQL ends it by itself."""
    behind: dict[int, list[_Waiting]] = {}
    for session in waiting.values():
        for root in _roots_of(session, waiting):
            behind.setdefault(root, []).append(session)
    return behind


def _roots_of(session: _Waiting, waiting: Mapping[int, _Waiting]) -> set[int]:
    seen: set[int] = set()
    todo = list(session.blockers)
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            todo += waiting[pid].blockers if pid in waiting else ()
    return seen - waiting.keys()


def _root(pid: int, row: tuple[Any, ...] | None, behind: Iterable[_Waiting], own: set[str]) -> Root:
    _, application, state, client, seconds = row or (pid, "", "", "", 0.0)
    found = list(behind)
    return Root(
        pid=pid,
        application=application,
        state=state,
        client=client,
        state_seconds=seconds,
        waiting=len(found),
        own_waiting=sum(each.application in own for each in found),
        waiting_seconds=max((each.seconds for each in found), default=0.0),
        is_own=application in own,
    )
