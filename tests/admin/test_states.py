"""Each action is for events in one state, and says so twice: when it chooses them, and in what it writes."""

from collections import Counter
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.operations import audit
from outbox.operations.actions import DELETE, RETRY, Action, apply, failing, replaying, total
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from tests.table import claimed, emit_one, statuses

FAILING = failing("enough")


@pytest.fixture
def events(box: Outbox) -> dict[str, OutboxEvent]:
    """One in each state."""
    outbox.handler("good", name="good")(lambda _: None)
    outbox.handler("bad", name="bad")(lambda _: 1 / 0)
    found = {DELIVERED: emit_one("good"), FAILED: emit_one("bad", max_attempts=1)}
    box.process_pending_events()
    found |= {SENDING: emit_one("good")}
    claimed(box)
    found |= {PENDING: emit_one("good")}
    assert statuses() == Counter([DELIVERED, FAILED, SENDING, PENDING])
    return found


def actions_of(box: Outbox) -> dict[str, Action]:
    return {action.name: action for action in (RETRY, FAILING, DELETE, replaying(box))}


def touched(box: Outbox, action: Action, events: dict[str, OutboxEvent]) -> set[str]:
    """The states of those that an action changes, when it is handed all of them: they have moved on since."""
    before = {state: snapshot(event) for state, event in events.items()}
    hit = action.run(box, list(events.values()))
    changed = {state for state, event in events.items() if snapshot(event) != before[state]}
    assert hit == len(changed)
    return changed


def snapshot(event: OutboxEvent) -> dict[str, Any] | None:
    row = OutboxEvent.get_or_none(OutboxEvent.id == event.id)
    return None if row is None else dict(row.__data__)


def test_retrying_touches_only_what_has_failed(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, RETRY, events) == {FAILED}


def test_failing_touches_only_what_waits(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, FAILING, events) == {PENDING}


def test_deleting_touches_only_what_has_ended(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, DELETE, events) == {DELIVERED, FAILED}


def test_replaying_touches_only_what_was_delivered(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, replaying(box), events) == {DELIVERED}


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    ("action", "meant"),
    [("retry", 1), ("fail", 2), ("delete", 2), ("replay", 1)],
)
def test_what_is_counted_beforehand_is_in_that_state(box: Outbox, action: str, meant: int) -> None:
    assert total(box, actions_of(box)[action], Filter()) == meant


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("action", ["retry", "fail", "delete", "replay"])
def test_a_change_that_can_not_be_written_down_is_not_made(
    box: Outbox, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(OutboxEvent.select().order_by(OutboxEvent.id).dicts())

    def fail(*_: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(audit.Entry, "add", fail)
    with pytest.raises(RuntimeError, match="disk"):
        list(apply(box, actions_of(box)[action], Filter(), who="ada"))
    assert list(OutboxEvent.select().order_by(OutboxEvent.id).dicts()) == before
