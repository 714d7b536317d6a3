"""Define the actions of operators: retry, replay, fail and delete.

An `Action` has all that the command line and the dashboard need: its name, the words that describe it, the events that
it applies to, and the function that changes a batch of them. `apply_action.py` runs actions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import peewee

from outbox.delivery.audience import names_of
from outbox.destinations.event_filter import Pattern
from outbox.destinations.recorded_destinations import read_recorded
from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError
from outbox.operations.filters import Condition
from outbox.storage import progress
from outbox.storage.dialect import Dialect
from outbox.storage.models import DELIVERED, EVENT, FAILED, PENDING, SENDING, OutboxEvent
from outbox.storage.status import has_ended, is_delivered, is_failed, is_unfinished
from outbox.text import clean_error

Rows = Sequence[OutboxEvent]


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
    # Changes those events of a batch that still have such a status, and returns how many it has changed.
    run: Callable[[Dialect, Rows], int]
    # Whether the events are due after the action. If so, a worker is notified.
    makes_due: bool = False
    # Whether the dashboard's button has the warning colour, because events end or are deleted.
    is_dangerous: bool = False


# Retry


def _retry(dialect: Dialect, rows: Rows) -> int:
    retry = dialect.statements.retry
    return sum(int(dialect.run(retry, (progress.restarted(row.progress), dialect.id(row.id))).rowcount) for row in rows)


RETRY = Action(
    name="retry",
    label="Retry",
    applies_to="have failed",
    done="queued for retry",
    consequences=(
        "Each event is due at once, and its attempts are counted from 0.",
        "Destinations that have the event already don't get it again.",
        "Fix the cause first, otherwise the event fails again.",
    ),
    job_consequences=(
        "Each job is due at once, and its attempts are counted from 0.",
        "Fix the cause first, otherwise the job fails again.",
    ),
    statuses=(FAILED,),
    conditions=is_failed,
    run=_retry,
    makes_due=True,
)


# Replay


def _replay(dialect: Dialect, rows: Rows) -> int:
    return _run(dialect, dialect.statements.replay, rows, before=(None,))


REPLAY = Action(
    name="replay",
    label="Replay",
    applies_to="are delivered",
    done="queued for replay",
    consequences=(
        "Each event is delivered again, with the same id and the same content.",
        "A consumer that remembers ids (an inbox) skips it; any other consumer processes it once more.",
    ),
    job_consequences=(
        "Each job's message is enqueued again, with the same message id and the same arguments.",
        "An actor that remembers ids (an inbox) skips it; any other actor runs once more.",
    ),
    statuses=(DELIVERED,),
    conditions=is_delivered,
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
        conditions=lambda: [*is_delivered(), wanted],
        run=lambda dialect, rows: _replay_to(dialect, rows, destination),
    )


def _replay_to(dialect: Dialect, rows: Rows, destination: str) -> int:
    """Replay events to one destination. In the column `progress`, all other destinations are marked delivered.

    `progress` gets an entry for each destination that the event was delivered to, and one entry for all others, which
    covers destinations that are registered later.
    """
    audiences = names_of(dialect, [row.audience for row in rows if row.audience is not None])
    # A row's `audience` is the number of the set of destinations that the event was delivered to.
    rows_by_audience: dict[int | None, list[OutboxEvent]] = {}
    for row in rows:
        rows_by_audience.setdefault(row.audience, []).append(row)
    changed = 0
    for number, rows_of_audience in rows_by_audience.items():
        delivered_to = audiences.get(number, ()) if number is not None else ()
        text = progress.replayed_to(destination, delivered_to)
        changed += _run(dialect, dialect.statements.replay, rows_of_audience, before=(text,))
    return changed


def _wanted_by(dialect: Dialect, registry: Registry, destination: str) -> Condition:
    """Return the condition for the events that a recorded or registered destination wants.

    A job is no event, whatever the name of its actor is: its arguments must never reach a destination of events.
    """
    with dialect.connection():
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


def _fail(reason: str) -> Callable[[Dialect, Rows], int]:
    text = clean_error(f"failed by an operator: {reason}" if reason else "failed by an operator")
    return lambda dialect, rows: _run(dialect, dialect.statements.fail_by_hand, rows, before=(text,))


FAIL = Action(
    name="fail",
    label="Fail",
    applies_to="are waiting",
    done="marked failed",
    consequences=(
        "Each event ends as failed. It is not tried again, unless an operator retries it.",
        "An event that a worker is delivering right now is not changed.",
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
    return replace(FAIL, run=_fail(reason))


# Delete


def _delete(dialect: Dialect, rows: Rows) -> int:
    return _run(dialect, dialect.statements.delete_by_hand, rows)


DELETE = Action(
    name="delete",
    label="Delete",
    applies_to="have ended",
    done="deleted",
    consequences=(
        "Each event is deleted with its content. This can't be undone.",
        "Its idempotency key can be used again, so the same event can be emitted a second time.",
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


ACTIONS = {action.name: action for action in (RETRY, REPLAY, FAIL, DELETE)}


def actions_for(status: str | None) -> list[Action]:
    """Return the actions that apply to events with this status, or all actions if it is None."""
    return [action for action in ACTIONS.values() if status is None or status in action.statuses]


def with_parameters(
    action: Action, dialect: Dialect, registry: Registry, *, reason: str = "", destination: str | None = None
) -> Action:
    """Return the action with the operator's input: the reason of a fail, or the destination of a replay."""
    if action.name == FAIL.name:
        return fail_with(reason)
    if action.name == REPLAY.name and destination is not None:
        return replay_to(dialect, registry, destination)
    return action


def _run(dialect: Dialect, statement: str, rows: Rows, *, before: tuple[object, ...] = ()) -> int:
    """Run a statement for all rows; return how many it has changed. `before` are the parameters before the ids."""
    return int(dialect.run(statement, (*before, dialect.ids([row.id for row in rows]))).rowcount)
