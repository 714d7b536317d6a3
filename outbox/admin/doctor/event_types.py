"""Check that handlers could read the events that they were given as objects of the declared classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, problem
from outbox.operations.count import COUNT_CAP, Count
from outbox.storage.models import EVENT, FAILED, OutboxEvent
from outbox.storage.progress import NEWER_VERSION, UNREADABLE, parse
from outbox.storage.status import Conditions, is_failed, is_unfinished

MOST_REPORTED = 10

# By reason, whether the events have failed, event type and destination: how many, and the last error.
Groups = dict[tuple[str, bool, str, str], tuple[int, str]]


def unreadable_events(context: Context) -> Iterator[Finding]:
    """Look for the reasons that workers have stored with unfinished and failed events."""
    groups: Groups = defaultdict(lambda: (0, ""))
    event = OutboxEvent
    for conditions, order in ((is_unfinished(), event.next_attempt_at), (is_failed(), event.id.desc())):
        _count(context, conditions, order, groups)
    yield from (_finding(group, count, error) for group, (count, error) in list(groups.items())[:MOST_REPORTED])
    if not groups:
        yield ok("Handlers could read every event that waits or has failed.")


def _count(context: Context, conditions: Conditions, order: object, groups: Groups) -> None:
    event = OutboxEvent
    query = event.select(event.event_type, event.progress).where(
        *conditions, event.kind == EVENT, event.progress.is_null(False)
    )
    for row in context.box.dialect.select(query.order_by(order).limit(COUNT_CAP)):
        for name, entry in parse(row.progress).items():
            if entry.reason in (UNREADABLE, NEWER_VERSION):
                group = entry.reason, entry.state == FAILED, row.event_type, name
                groups[group] = groups[group][0] + 1, entry.error or ""


def _finding(group: tuple[str, bool, str, str], count: int, error: str) -> Finding:
    reason, has_failed, event_type, name = group
    events = f"{Count(count).of('event')} of the type {event_type!r}"
    if reason == NEWER_VERSION:
        return problem(
            f"{events} can't be read by {name}: {error}.",
            "Deploy the workers with the code that declares this version before the code that emits it. After a "
            "rollback, deploy the newer code again.",
        )
    return problem(
        f"{events} {'have failed' if has_failed else 'wait'}, because {name} can't read them: {error}",
        "Correct the class, or add an upcaster; `outbox compat your.module` tells beforehand what new code can't read. "
        + ("Then run `outbox retry`." if has_failed else "Workers with the new code try again by themselves."),
    )
