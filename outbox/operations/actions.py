"""Define the actions of operators: retry, replay, skip, fail and delete.

An `Action` has all that the command line and the dashboard need: its name, the words that describe it, the events that
it applies to, and the function that changes a batch of them. `apply_action.py` runs actions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import peewee

from outbox.delivery.audience import names_of
from outbox.destinations.event_filter import Pattern
from outbox.destinations.recorded_destinations import read_recorded
from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError
from outbox.operations.filters import Condition
from outbox.storage import progress
from outbox.storage.attempts import forget_attempts
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.models import DELIVERED, EVENT, FAILED, JOB, PENDING, SENDING, OutboxEvent
from outbox.storage.status import IS_FAILED, IS_UNFINISHED, has_ended, is_delivered, is_failed, is_unfinished
from outbox.storage.timestamp import LATEST
from outbox.storage.waiting_events import release_keys
from outbox.text import clean_error

# What an operator has to type before all events that have ended are deleted.
DELETE_EVERYTHING = "delete everything"

# An event whose content was erased can't be delivered again (`erase.py`).
NOT_ERASED = OutboxEvent.erased_at.is_null()

Rows = Sequence[OutboxEvent]
Ids = Sequence[UUID]


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of change: how it is described, which events it applies to, and what it does to a batch of them."""

    # In commands, in addresses of pages and in the audit log: "retry".
    name: str
    # On buttons and in headings: "Retry".
    label: str
    # The rest of "Only events that …": "have failed".
    applies_to: str
    # The rest of "3 events were …": "queued for retry".
    done: str
    # Sentences that say what will happen to the events. They are shown before the operator confirms.
    consequences: tuple[str, ...]
    # The same about jobs.
    job_consequences: tuple[str, ...]
    # Only events with one of these statuses can be changed. `conditions` returns the same as SQL conditions, and may
    # add more of them.
    statuses: tuple[str, ...]
    conditions: Callable[[], list[Condition]]
    # Changes those events of a batch that still have such a status, and returns their ids.
    run: Callable[[Dialect, Rows], Ids]
    # Whether the events are due after the action. If so, a worker is notified.
    makes_due: bool = False
    # Whether events end or are deleted: the dashboard's button has the warning colour, and needs more permission.
    is_dangerous: bool = False
    # What the operator has entered, for the audit log: the reason of a fail, the destination of a replay.
    parameters: Mapping[str, Any] = field(default_factory=dict)


# Retry


def _retry(dialect: Dialect, rows: Rows) -> Ids:
    retry = dialect.statements.retry
    changed: list[UUID] = []
    for row in rows:
        changed += _ids_of(dialect.run(retry, (progress.restarted(row.progress), dialect.id(row.id))))
    return changed


RETRY = Action(
    name="retry",
    label="Retry",
    applies_to="have failed",
    done="queued for retry",
    consequences=(
        "Each event is due at once, and its attempts are counted from 0.",
        "Destinations that have the event already don't get it again.",
        "Fix the cause first, otherwise the event fails again.",
        "Later events of its ordering key that wait behind it follow when it is delivered.",
    ),
    job_consequences=(
        "Each job is due at once, and its attempts are counted from 0.",
        "Fix the cause first, otherwise the job fails again.",
    ),
    statuses=(FAILED,),
    conditions=lambda: [*is_failed(), NOT_ERASED],
    run=_retry,
    makes_due=True,
)


# Retry now


def _retry_now(dialect: Dialect, rows: Rows) -> Ids:
    changed: list[UUID] = []
    for row in rows:
        due = progress.tried_now(row.progress)
        if due is not None:
            changed += _ids_of(dialect.run(dialect.statements.retry_now, (due, dialect.id(row.id))))
    return changed


def _waits() -> list[Condition]:
    """Return the conditions for events that a destination has refused, or that wait since it was unavailable."""
    return [
        *is_unfinished(),
        OutboxEvent.next_attempt_at < LATEST,
        OutboxEvent.lease_id.is_null(),
        OutboxEvent.progress.is_null(False),
    ]


RETRY_NOW = Action(
    name="retry-now",
    label="Retry now",
    applies_to="wait for their next attempt",
    done="made due",
    consequences=(
        "Each event is tried at once instead of after its wait. Its attempts are not reset.",
        "A destination whose circuit breaker is open is not called before its next probe: outbox recover closes it.",
        "An event that waits for the end of a pause, or behind an earlier event of its key, is not changed.",
    ),
    job_consequences=("Each job is tried at once instead of after its wait.",),
    statuses=(PENDING,),
    conditions=_waits,
    run=_retry_now,
    makes_due=True,
)


def retry_now(dialect: Dialect) -> Action:
    """Return the action that tries waiting events now. Those that are due already are not counted."""
    with dialect.lock_limit():
        now = dialect.now()
    return replace(RETRY_NOW, conditions=lambda: [*_waits(), OutboxEvent.next_attempt_at > now])


# Replay


def _replay(dialect: Dialect, rows: Rows) -> Ids:
    return _run(dialect, dialect.statements.replay, rows, before=(None,))


REPLAY = Action(
    name="replay",
    label="Replay",
    applies_to="are delivered",
    done="queued for replay",
    consequences=(
        "Each event is delivered again, with the same id and the same content.",
        "A consumer that remembers ids (an inbox) skips it; any other consumer processes it again.",
        "The order of its ordering key is not kept: later events were delivered before it, and none waits for it.",
    ),
    job_consequences=(
        "Each job's message is enqueued again, with the same message id and the same arguments.",
        "An actor that remembers ids (an inbox) skips it; any other actor runs again.",
    ),
    statuses=(DELIVERED,),
    conditions=lambda: [*is_delivered(), NOT_ERASED],
    run=_replay,
    makes_due=True,
)


def replay_to(dialect: Dialect, registry: Registry, destination: str) -> Action:
    """Return the action that delivers events again to one destination, if the destination wants their type.

    Raise RegistrationError if no worker has recorded the destination and it is not registered here.
    """
    wanted = _wanted_by(dialect, registry, destination)
    return replace(
        REPLAY,
        done=f"{REPLAY.done} to {destination}",
        conditions=lambda: [*is_delivered(), NOT_ERASED, wanted],
        run=lambda dialect, rows: _replay_to(dialect, rows, destination),
        parameters={"to": destination},
    )


def _replay_to(dialect: Dialect, rows: Rows, destination: str) -> Ids:
    """Replay events to one destination. In the column `progress`, all other destinations are marked delivered.

    `progress` gets an entry for each destination that the event was delivered to, and one entry for all others, which
    covers destinations that are registered later.
    """
    audiences = names_of(dialect, [row.audience for row in rows if row.audience is not None])
    # A row's `audience` is the number of the set of destinations that the event was delivered to.
    rows_by_audience: dict[int | None, list[OutboxEvent]] = {}
    for row in rows:
        rows_by_audience.setdefault(row.audience, []).append(row)
    changed: list[UUID] = []
    for number, rows_of_audience in rows_by_audience.items():
        delivered_to = audiences.get(number, ()) if number is not None else ()
        text = progress.replayed_to(destination, delivered_to)
        changed += _run(dialect, dialect.statements.replay, rows_of_audience, before=(text,))
    return changed


def _wanted_by(dialect: Dialect, registry: Registry, destination: str) -> Condition:
    """Return the condition for the events that a recorded or registered destination wants.

    A job is no event, whatever the name of its actor is: its arguments must never reach a destination of events.
    """
    with dialect.lock_limit():
        recorded = read_recorded(dialect)[1]
    known = {name: list(each.patterns) for name, each in recorded.items() if not each.retired}
    known |= {name: list(each.events) for name, each in registry.destinations.items()}
    if destination not in known:
        names = f"Known are: {', '.join(sorted(known))}." if known else "No worker has recorded any yet."
        raise RegistrationError(f"There is no destination called {destination!r}. {names}")
    wanted = functools.reduce(operator.or_, [_matches(Pattern(text)) for text in known[destination]])
    return (OutboxEvent.kind == EVENT) & wanted


def _matches(pattern: Pattern) -> Condition:
    """Return the condition for the event types that a pattern matches."""
    column = OutboxEvent.event_type
    if pattern.prefix is None:
        return column == pattern.text
    return peewee.fn.substr(column, 1, len(pattern.prefix)) == pattern.prefix


# Fail


def _fail(reason: str) -> Callable[[Dialect, Rows], Ids]:
    text = clean_error(f"failed by an operator: {reason}" if reason else "failed by an operator")

    def run(dialect: Dialect, rows: Rows) -> Ids:
        changed = _run(dialect, dialect.statements.fail_by_hand, rows, before=(text,))
        _release_followers(dialect, rows)  # a destination may skip failed events
        return changed

    return run


FAIL = Action(
    name="fail",
    label="Fail",
    applies_to="are waiting",
    done="marked failed",
    consequences=(
        "Each event ends as failed. It is not tried again, unless an operator retries it.",
        "An event that a worker is delivering right now is not changed.",
        "Later events of its ordering key wait behind it, unless the destination skips failed events.",
    ),
    job_consequences=(
        "Each job ends as failed. It is not enqueued, unless an operator retries it.",
        "A job that a worker is enqueueing right now is not changed.",
    ),
    statuses=(PENDING, SENDING),
    conditions=is_unfinished,
    run=_fail(""),
    is_dangerous=True,
)


def fail_with(reason: str) -> Action:
    """Return the action that marks events as failed and stores this reason with them."""
    return replace(FAIL, run=_fail(reason), parameters={"reason": reason} if reason else {})


# Skip


def _skip(dialect: Dialect, rows: Rows) -> Ids:
    changed = list(_run(dialect, dialect.statements.skip, rows))
    for row in rows:
        text = progress.skipped(row.progress)
        if row.id not in changed and text is not None:
            changed += _ids_of(dialect.run(dialect.statements.skip_where_failed, (text, dialect.id(row.id))))
    _release_followers(dialect, rows)
    return changed


def _holds_others_back() -> list[Condition]:
    has_failed = peewee.SQL(f"({IS_FAILED})") | (peewee.SQL(f"({IS_UNFINISHED})") & progress.has_failed_entry())
    return [OutboxEvent.order_state.is_null(False), has_failed]


SKIP = Action(
    name="skip",
    label="Skip",
    applies_to="have failed and hold back later events of their ordering key",
    done="skipped",
    consequences=(
        "Each event stays failed. Later events of its ordering key no longer wait behind it.",
        "Destinations that lack it get the later events without it.",
        "If other destinations still try it, it is skipped only where it has failed.",
    ),
    job_consequences=(),
    statuses=(FAILED, PENDING),
    conditions=_holds_others_back,
    run=_skip,
    makes_due=True,
)


# Delete


def _delete(dialect: Dialect, rows: Rows) -> Ids:
    changed = _run(dialect, dialect.statements.delete_by_hand, rows)
    forget_attempts(dialect, changed)
    _release_followers(dialect, rows)
    return changed


DELETE = Action(
    name="delete",
    label="Delete",
    applies_to="have ended",
    done="deleted",
    consequences=(
        "Each event is deleted with its content. This can't be undone.",
        "Its idempotency key can be used again, so the same event can be emitted a second time.",
        "Later events of its ordering key that wait behind it are delivered without it.",
    ),
    job_consequences=(
        "Each job is deleted with its arguments. This can't be undone.",
        "Its idempotency key can be used again, so the same job can be sent a second time.",
    ),
    statuses=(DELIVERED, FAILED),
    conditions=has_ended,
    run=_delete,
    is_dangerous=True,
)


ACTIONS = {action.name: action for action in (RETRY, RETRY_NOW, REPLAY, SKIP, FAIL, DELETE)}


def actions_for(status: str | None, kind: str | None = None) -> list[Action]:
    """Return the actions that apply to rows with this status and of this kind; None stands for any."""
    return [
        action
        for action in ACTIONS.values()
        if (status is None or status in action.statuses) and (kind != JOB or action.job_consequences)
    ]


def actions_on(event: OutboxEvent) -> list[Action]:
    """Return the actions that apply to one event or job.

    Only an event that may hold back others can be skipped, and only one that waits for a retry can be tried sooner.
    """
    has_failed = event.status == FAILED or bool(progress.failed(event.progress))
    may_hold = event.order_state is not None and has_failed
    has_content = event.erased_at is None
    possible = {SKIP.name: may_hold, RETRY_NOW.name: event.progress is not None}
    possible |= {RETRY.name: has_content, REPLAY.name: has_content}
    return [action for action in actions_for(event.status) if possible.get(action.name, True)]


def with_parameters(
    action: Action, dialect: Dialect, registry: Registry, *, reason: str = "", destination: str | None = None
) -> Action:
    """Return the action with the operator's input: the reason of a fail, or the destination of a replay."""
    if action.name == FAIL.name:
        return fail_with(reason)
    if action.name == RETRY_NOW.name:
        return retry_now(dialect)
    if action.name == REPLAY.name and destination is not None:
        return replay_to(dialect, registry, destination)
    return action


def _release_followers(dialect: Dialect, rows: Rows) -> None:
    """Make the next event due that waits behind these. The worker that claims it checks again what holds it back."""
    release_keys(dialect, {row.ordering_key for row in rows if row.ordering_key is not None})


def _run(dialect: Dialect, statement: str, rows: Rows, *, before: tuple[object, ...] = ()) -> Ids:
    """Run a statement for all rows; return the ids that it has changed. `before` are the parameters before the ids."""
    return _ids_of(dialect.run(statement, (*before, dialect.ids([row.id for row in rows]))))


def _ids_of(cursor: Any) -> Ids:
    return [as_uuid(id) for (id,) in cursor.fetchall()]
