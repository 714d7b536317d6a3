"""Check for queues behind locks of PostgreSQL: the session at the head of a queue stops all others."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.admin.lock_waits import PREPARED, Root

MOST_REPORTED = 3
OTHERS_GO_ON = "The sessions that wait go on by themselves then: don't end those."


def lock_queues(context: Context) -> Iterator[Finding]:
    """Check that no session holds up others for long, and that the events could be read in time."""
    overview = context.overview
    long = [each for each in overview.roots if each.waiting_seconds >= context.thresholds.lock_wait_seconds]
    roots = overview.roots if overview.events_unread else long
    yield from (_held_up(root, is_ours=bool(overview.events_unread)) for root in roots[:MOST_REPORTED])
    if overview.events_unread and not roots:
        yield problem(
            f"The events could not be read within {format_seconds(overview.events_unread)}, and no lock is the reason: "
            "the database is overloaded, or its statistics are out of date.",
            "Look at the load of the database's host, and run `ANALYZE`.",
            brief="the events can't be read in time",
        )
    if not roots and not overview.events_unread:
        yield ok("No session holds up others.")


def _held_up(root: Root, *, is_ours: bool) -> Finding:
    sessions = "1 session" if root.waiting == 1 else f"{root.waiting} sessions"
    what = (
        f"{root.name[0].upper()}{root.name[1:]} holds up {sessions}, the longest for "
        f"{format_seconds(root.waiting_seconds)}: they wait for its locks, or behind each other."
    )
    if not root.waiting:
        what = f"{root.name[0].upper()}{root.name[1:]} has locked the table of events."
    if is_ours:
        what += " Until it ends, no process can read or deliver events."
    kind = problem if is_ours or root.own_waiting else warning
    whom = sessions if root.waiting else "all readers"
    return kind(what, f"{_advice(root)} {OTHERS_GO_ON}", brief=f"{root.name} holds up {whom}")


def _advice(root: Root) -> str:
    if root.pid == PREPARED:
        return "Find it in pg_prepared_xacts, and end it as its transaction manager has decided."
    if root.is_own:
        return (
            f"It belongs to a process of the outbox or of the application{_client(root)}: find out why that process "
            "does not go on (its log, `py-spy dump`), and restart it if it hangs."
        )
    end = f"`SELECT pg_terminate_backend({root.pid})`"
    return f"If its program is not needed, or was left open by mistake{_client(root)}, run {end}."


def _client(root: Root) -> str:
    return f" (its connection comes from {root.client})" if root.client else ""
