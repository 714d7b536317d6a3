"""Check the order per key: keys that are blocked, and workers whose version knows no order."""

from __future__ import annotations

from collections.abc import Iterator

import peewee

from outbox.admin.blocked_keys import BlockedKey, describe_head, how_to_go_on
from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.doctor.processes import name_of
from outbox.admin.durations import format_seconds
from outbox.storage.models import FAILED, OutboxEvent
from outbox.storage.schema_ordering import CAN_HOLD
from outbox.storage.status import is_unfinished
from outbox.text import printable, shorten
from outbox.version import __version__

# How many findings there are of each kind.
MOST_REPORTED = 3
ERROR_LENGTH = 160


def blocked_keys(context: Context) -> Iterator[Finding]:
    """Check that no ordering key is blocked by a failed event, and none is blocked for long."""
    found = context.overview.blocked
    now = context.overview.now
    failed = [each for each in found.longest if each.is_failed]
    slow = [
        each
        for each in found.longest
        if not each.is_failed and (now - each.since).total_seconds() >= context.thresholds.blocked_seconds
    ]
    yield from (_failed_finding(each) for each in failed[:MOST_REPORTED])
    yield from (_slow_finding(context, each) for each in slow[:MOST_REPORTED])
    more = max(0, len(failed) - MOST_REPORTED) + max(0, len(slow) - MOST_REPORTED)
    if more:
        yield problem(
            f"At least {more:,} more keys are blocked; {found.count} in all.",
            "`outbox keys --limit 1000` lists them.",
            brief=f"{found.count} keys are blocked in all",
            page="keys",
        )
    if failed or slow:
        return
    if found.count.number:
        since = format_seconds((now - found.longest[0].since).total_seconds())
        yield ok(f"{found.count.of('key')} blocked, the first for {since}, by events that are tried again.")
    else:
        yield ok("No ordering key is blocked.")


def workers_without_order(context: Context) -> Iterator[Finding]:
    """Check that every worker keeps the order of the events with an ordering key that wait.

    A worker of a version before there was order delivers such an event when it is due, whatever it should wait for.
    """
    unaware = [name_of(each) for each in context.overview.workers if not each.details.get("keeps_order")]
    if unaware and _has_keyed_events(context):
        for name in unaware[:MOST_REPORTED]:
            yield problem(
                f"{name} runs a version of the library that keeps no order, and events with an ordering key are not "
                "delivered yet: it delivers those that it claims at once, also before earlier events of their key.",
                f"Stop {name}, install this version ({__version__}) there, and start it again. Upgrade all workers "
                "before the application emits the first event with an ordering key.",
            )
        return
    yield ok("All workers keep the order of ordering keys." if not unaware else "No event with an ordering key waits.")


def _has_keyed_events(context: Context) -> bool:
    event = OutboxEvent
    query = event.select(event.id).where(peewee.SQL(f"({CAN_HOLD})"), *is_unfinished()).limit(1)
    return bool(context.overview.blocked.count.number or context.box.dialect.select(query))


def _failed_finding(blocked: BlockedKey) -> Finding:
    head = blocked.head
    assert head is not None  # noqa: S101  (a key is blocked by a failed event only if it has one)
    error = "" if head.error_message is None else f": {shorten(printable(head.error_message, ' '), ERROR_LENGTH)}"
    return problem(
        f"The key {blocked.key} is blocked at {blocked.destination}: {blocked.waiting.of('event')} "
        f"{'waits' if blocked.waiting.number == 1 else 'wait'} behind {head.id} ({head.event_type}), which has "
        f"failed{'' if head.status == FAILED else ' there'}{error}",
        " ".join(how_to_go_on([blocked])),
        brief=f"the key {blocked.key} is blocked at {blocked.destination}, {blocked.waiting.of('event')} "
        f"{'waits' if blocked.waiting.number == 1 else 'wait'} behind one that has failed",
        page="keys",
    )


def _slow_finding(context: Context, blocked: BlockedKey) -> Finding:
    now = context.overview.now
    since = format_seconds((now - blocked.since).total_seconds())
    behind = "" if blocked.head is None else f" behind {blocked.head.id} ({blocked.head.event_type})"
    advice = (
        "Make sure that workers run: they release it."
        if blocked.head is None
        else f"Run `outbox show {blocked.head.id}` to see why it is not delivered. To go on without it, run "
        f"`outbox fail {blocked.head.id}` and then `outbox skip {blocked.head.id}`."
    )
    return warning(
        f"The key {blocked.key} has been blocked at {blocked.destination} for "
        f"{since}: {blocked.waiting.of('event')} "
        f"{'waits' if blocked.waiting.number == 1 else 'wait'}{behind}, {describe_head(blocked, now)}.",
        advice,
        brief=f"the key {blocked.key} has been blocked at {blocked.destination} for {since}",
        page="keys",
    )
