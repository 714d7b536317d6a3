"""What operators control, for tests: pauses and throttles, also such as began long ago."""

from dataclasses import replace
from datetime import datetime, timedelta

import outbox
from outbox.core import Outbox
from outbox.destinations.controls import Controls, read_controls
from outbox.operations import controls
from outbox.telemetry.audit import Operator

ALICE = Operator("alice")


def nobody_is_notified() -> None:
    pass


def pause(name: str, lasting: timedelta | None = None, reason: str | None = None) -> None:
    controls.pause(outbox.current().dialect, name, operator=ALICE, lasting=lasting, reason=reason, force=True)


def resume(name: str) -> int:
    return controls.resume(outbox.current().dialect, nobody_is_notified, name, operator=ALICE)[1]


def throttle(name: str, per_second: float) -> None:
    controls.throttle(outbox.current().dialect, name, per_second, operator=ALICE, force=True)


def unthrottle(name: str) -> int:
    return controls.unthrottle(outbox.current().dialect, nobody_is_notified, name, operator=ALICE)[1]


def recover(box: Outbox, name: str) -> int:
    return controls.recover(
        box.dialect, nobody_is_notified, box.throttles.close_breaker, name, operator=ALICE, force=True
    )


def controlled(box: Outbox) -> Controls:
    with box.dialect.connection():
        return read_controls(box.dialect)[0]


def let_controls_age(box: Outbox, **time: float) -> None:
    """As if all pauses and throttles had begun earlier by this much, and had ended earlier."""
    back = timedelta(**time)

    def earlier(moment: datetime | None) -> datetime | None:
        return None if moment is None else moment - back

    found = controlled(box)
    older = replace(
        found,
        pauses={name: replace(each, since=each.since - back, until=earlier(each.until)) for name, each in
                found.pauses.items()},
        throttles={name: replace(each, since=each.since - back, until=earlier(each.until)) for name, each in
                   found.throttles.items()},
    )  # fmt: skip
    with box.dialect.connection(), box.dialect.atomic():
        box.dialect.run(box.dialect.statements.controls_set, (older.to_json(),))
        box.dialect.run(box.dialect.statements.destinations_changed)
