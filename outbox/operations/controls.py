"""Change the controls of deliveries at run time: pause, resume, throttle, and report that a destination is back.

Each changes the row `controls` of the control table and writes an entry to the audit log, in one transaction. Workers
read the row again with their next claim. Events that were put off meanwhile are then made due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from outbox.destinations.controls import EVERYTHING, Controls, Pause, Throttle, read_controls
from outbox.destinations.recorded_destinations import RecordedDestination, change_recorded
from outbox.destinations.retirement import describe_recorded
from outbox.errors import RegistrationError, SchemaError, SettingsError
from outbox.storage import timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.sooner import make_due_sooner
from outbox.telemetry import audit
from outbox.telemetry.audit import AuditEntry, Operator
from outbox.text import is_storable, shorten

PAUSE, RESUME, THROTTLE, UNTHROTTLE, RECOVER = "pause", "resume", "throttle", "unthrottle", "recover"

REASON_LENGTH = 200
LEAST_PER_SECOND, MOST_PER_SECOND = 0.01, 100_000.0
LONGEST = timedelta(days=365)

# How many waiting events of a recovered destination are made due per second, and from which event on: few at first, as
# the ramp-up of its circuit breaker admits them.
RAMP = ((0, 25.0), (500, 100.0), (1_500, 500.0), (2_500, 1_000.0))

Change = Callable[[Controls, datetime], Controls]


def pause(
    dialect: Dialect,
    name: str,
    *,
    operator: Operator,
    lasting: timedelta | None = None,
    reason: str | None = None,
    force: bool = False,
) -> Pause:
    """Pause a destination, or EVERYTHING, until it is resumed or for the time `lasting`; return the pause.

    A pause that it has already is replaced. Without `force`, raise RegistrationError if no worker has recorded the
    name, because it is probably mistyped.
    """
    _check_time(lasting)
    reason = None if not reason else shorten(reason, REASON_LENGTH)
    made: list[Pause] = []

    def change(before: Controls, now: datetime) -> Controls:
        made.append(Pause(now, None if lasting is None else now + lasting, operator.name, reason))
        return before.with_pause(name, made[0], now)

    details = {"destination": name, "seconds": None if lasting is None else lasting.total_seconds(), "reason": reason}
    _change(dialect, change, operator, PAUSE, details | {"force": force or None}, check_name=not force)
    return made[0]


def resume(dialect: Dialect, notify: Callable[[], None], name: str, *, operator: Operator) -> tuple[bool, int]:
    """End a pause, and make the events due that waited for its end; return whether there was one, and how many are due.

    If this is interrupted before all events are due, call it again: it makes the others due.
    """
    was_paused: list[bool] = []

    def change(before: Controls, now: datetime) -> Controls:
        was_paused.append(name in before.pauses)
        return before.without_pause(name, now)

    begun = _change(dialect, change, operator, RESUME, {"destination": name}, goes_on=True)
    with dialect.connection(), audit.ending(begun):
        return was_paused[0], _make_due(dialect, notify, None if name == EVERYTHING else name)


def throttle(
    dialect: Dialect,
    name: str,
    per_second: float,
    *,
    operator: Operator,
    lasting: timedelta | None = None,
    force: bool = False,
) -> Throttle:
    """Limit a destination to `per_second` events, until `unthrottle` or for the time `lasting`."""
    _check_time(lasting)
    if not LEAST_PER_SECOND <= per_second <= MOST_PER_SECOND:
        raise SettingsError(
            f"The rate must be from {LEAST_PER_SECOND:g} to {MOST_PER_SECOND:,.0f} events a second, not "
            f"{per_second:g}. To send nothing, pause the destination."
        )
    if name == EVERYTHING:
        raise SettingsError("A throttle is for one destination: give its name.")
    made: list[Throttle] = []

    def change(before: Controls, now: datetime) -> Controls:
        made.append(Throttle(per_second, now, None if lasting is None else now + lasting, operator.name))
        return before.with_throttle(name, made[0])

    seconds = None if lasting is None else lasting.total_seconds()
    details = {"destination": name, "per_second": per_second, "seconds": seconds, "force": force or None}
    _change(dialect, change, operator, THROTTLE, details, check_name=not force)
    return made[0]


def unthrottle(dialect: Dialect, notify: Callable[[], None], name: str, *, operator: Operator) -> tuple[bool, int]:
    """End a throttle, and make its waiting events due; return whether there was one, and how many events are due."""
    was_throttled: list[bool] = []

    def change(before: Controls, now: datetime) -> Controls:
        was_throttled.append(name in before.throttles)
        return before.with_throttle(name, None)

    begun = _change(dialect, change, operator, UNTHROTTLE, {"destination": name}, goes_on=True)
    with dialect.connection(), audit.ending(begun):
        return was_throttled[0], _make_due(dialect, notify, name)


def recover(
    dialect: Dialect,
    notify: Callable[[], None],
    close_breaker: Callable[[str], object],
    name: str,
    *,
    operator: Operator,
    per_second: float | None = None,
    force: bool = False,
) -> int:
    """Report that a destination can be reached again: close its circuit breaker, and make its waiting events due.

    `close_breaker` closes the breaker that workers share. Each worker closes its own when it reads the controls. The
    events become due one after another, `per_second` of them or slowly at first. Return how many.
    """
    if name == EVERYTHING:
        raise SettingsError("Give the name of the destination that can be reached again.")

    def change(before: Controls, now: datetime) -> Controls:
        return replace(before, reached={**before.reached, name: now})

    details = {"destination": name, "per_second": per_second, "force": force or None}
    begun = _change(dialect, change, operator, RECOVER, details, check_name=not force, goes_on=True)
    with dialect.connection(), audit.ending(begun):
        close_breaker(name)
        return _make_due(dialect, notify, name, RAMP if per_second is None else ((0, per_second),))


def in_flight(dialect: Dialect) -> dict[str, int]:
    """Return the valid leases, each with the number of its events: what workers are delivering right now."""
    with dialect.bounded():
        rows = dialect.run(dialect.statements.in_flight).fetchall()
    return {str(lease_id): int(count) for lease_id, count in rows}


def _make_due(
    dialect: Dialect,
    notify: Callable[[], None],
    name: str | None,
    ramp: tuple[tuple[int, float], ...] = ((0, 0.0),),
) -> int:
    """Make the events due that wait at the destination, at these rates (0: at once); return how many.

    Each is made due once, also if a throttle puts it off again meanwhile.
    """
    with dialect.lock_limit():
        began_at = dialect.now()
        # SQLite's clock has only milliseconds, and the time of each change below must be later than this one.
        while dialect.now() == began_at:
            pass
    total, after_seconds, position = 0, 0.0, timestamp.EARLIEST
    while True:
        per_second = next(rate for least, rate in reversed(ramp) if total >= least)
        step = 1 / per_second if per_second else 0.0
        with dialect.lock_limit():
            done = make_due_sooner(
                dialect,
                name,
                since=position,
                unchanged_since=began_at,
                after_seconds=after_seconds,
                step_seconds=step,
            )
        total += done.changed
        after_seconds += done.changed * step
        if done.changed:
            notify()
        if done.position is None:
            return total
        position = done.position


def _change(
    dialect: Dialect,
    change: Change,
    operator: Operator,
    action: str,
    details: dict[str, Any],
    *,
    check_name: bool = False,
    goes_on: bool = False,
) -> AuditEntry:
    """Change the controls, and with them the version that claims return, and write the audit entry.

    The entry has ended, unless the action `goes_on`: then the caller ends it.
    """
    given, name = {key: value for key, value in details.items() if value is not None}, details["destination"]
    entry = AuditEntry(dialect, operator, action)
    with change_recorded(dialect) as by_name:
        if check_name:
            _check_name(name, by_name)
        before, now = read_controls(dialect)
        after = change(before.active(now), now)
        if not dialect.run(dialect.statements.controls_set, (after.to_json(),)).rowcount:
            table = dialect.tables.control
            raise SchemaError(
                f"The row 'controls' is missing from the table {table}. Restore it: INSERT INTO {table} "  # noqa: S608
                "(name, version, updated_at) VALUES ('controls', 1, CURRENT_TIMESTAMP)."
            )
        dialect.run(dialect.statements.destinations_changed)
        entry.begin(given)
        if not goes_on:
            entry.end()
    return entry


def _check_name(name: str, by_name: dict[str, RecordedDestination]) -> None:
    if name == EVERYTHING or (name in by_name and not by_name[name].retired):
        return
    if not is_storable(name):
        raise RegistrationError(f"{name!r} can't be the name of a destination: it contains NUL or a lone surrogate.")
    raise RegistrationError(
        f"No destination called {name!r} is recorded. {describe_recorded(by_name)} For the name of a broker of jobs or "
        "of a periodic function, which are not recorded, use --force."
    )


def _check_time(lasting: timedelta | None) -> None:
    if lasting is not None and not timedelta(seconds=1) <= lasting <= LONGEST:
        raise SettingsError("A pause or a throttle lasts at least a second and at most a year.")
