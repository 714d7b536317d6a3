"""Each action applies to events in certain states, and checks that twice: when it selects them, and in its UPDATE."""

from collections import Counter
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.operations.actions import ACTIONS, DELETE, FAIL, REPLAY, RETRY, Action
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from tests.operations.changing import change_all, count_all
from tests.support.table import claimed, emit_one, statuses


@pytest.fixture
def events(box: Outbox) -> dict[str, OutboxEvent]:
    """Return one event in each state."""
    outbox.handler("good", name="good")(lambda _: None)
    outbox.handler("bad", name="bad")(lambda _: 1 / 0)
    found = {DELIVERED: emit_one("good"), FAILED: emit_one("bad", max_attempts=1)}
    box.process_pending_events()
    found |= {SENDING: emit_one("good")}
    claimed(box)
    found |= {PENDING: emit_one("good")}
    assert statuses() == Counter([DELIVERED, FAILED, SENDING, PENDING])
    return found


def touched(box: Outbox, action: Action, events: dict[str, OutboxEvent]) -> set[str]:
    """Return the states of the events that an action changes, and names, when it is given one event of each state."""
    before = {state: snapshot(event) for state, event in events.items()}
    hit = action.run(box.dialect, list(events.values()))
    changed = {state for state, event in events.items() if snapshot(event) != before[state]}
    assert set(hit) == {events[state].id for state in changed}
    return changed


def snapshot(event: OutboxEvent) -> dict[str, Any] | None:
    row = OutboxEvent.get_or_none(OutboxEvent.id == event.id)
    return None if row is None else dict(row.__data__)


def test_retry_changes_only_failed_events(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, RETRY, events) == {FAILED}


def test_fail_changes_only_waiting_events(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, FAIL, events) == {PENDING}


def test_delete_changes_only_ended_events(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, DELETE, events) == {DELIVERED, FAILED}


def test_replay_changes_only_delivered_events(box: Outbox, events: dict[str, OutboxEvent]) -> None:
    assert touched(box, REPLAY, events) == {DELIVERED}


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    ("action", "meant"),
    [("retry", 1), ("fail", 2), ("delete", 2), ("replay", 1)],
)
def test_only_events_in_these_states_are_counted(box: Outbox, action: str, meant: int) -> None:
    assert count_all(box, ACTIONS[action]) == meant


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("action", ["retry", "fail", "delete", "replay"])
def test_a_change_that_can_not_be_audited_is_not_made(
    box: Outbox, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(OutboxEvent.select().order_by(OutboxEvent.id).dicts())

    def fail(*_: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(audit.AuditEntry, "add", fail)
    with pytest.raises(RuntimeError, match="disk"):
        change_all(box, ACTIONS[action], operator=Operator("ada"))
    assert list(OutboxEvent.select().order_by(OutboxEvent.id).dicts()) == before
