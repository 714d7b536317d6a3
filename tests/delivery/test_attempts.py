"""The history of attempts: what was tried in vain is kept, in one statement for a batch; a success writes nothing."""

from typing import Any

import pytest

import outbox
from outbox import Unavailable
from outbox.core import Outbox
from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Failed, Retry
from outbox.operations.actions import DELETE
from outbox.operations.apply_action import apply
from outbox.operations.filters import Filter
from outbox.storage.attempts import MOST_PER_EVENT, read_attempts
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.operator_models import Attempt
from tests.conftest import Configure
from tests.support.controls import pause
from tests.support.ordering import Receiver, crm
from tests.support.table import change, emit, emit_one, let_pass, statements, statuses, stored

__all__ = ["crm"]


def attempts_of(event: OutboxEvent) -> list[Attempt]:
    return read_attempts(outbox.current().dialect, event.id)


def count() -> int:
    return int(outbox.current().dialect.run("SELECT count(*) FROM outbox_attempt").fetchone()[0])


def about_attempts(seen: list[str]) -> list[str]:
    return [each for each in seen if "outbox_attempt" in each]


def test_each_failure_is_kept_with_what_is_known_of_it(box: Outbox, crm: Receiver) -> None:
    crm.outcomes["0"] = Retry("HTTP 500: oh", http_status=500)
    event = emit_one(max_attempts=3)
    box.process_pending_events()
    let_pass(minutes=2)
    crm.outcomes["0"] = Unavailable("connection refused")
    box.process_pending_events()
    let_pass(minutes=3)
    crm.outcomes["0"] = Failed("HTTP 410", http_status=410)
    box.process_pending_events()
    kept = attempts_of(event)
    assert [(each.outcome, each.http_status, each.error) for each in kept] == [
        ("retry", 500, "HTTP 500: oh"),
        ("unavailable", None, "connection refused"),
        ("failed", 410, "HTTP 410"),
    ]
    first = kept[0]
    assert (first.destination, ":" in first.worker, 0 <= first.seconds < 60) == ("crm", True, True)
    assert abs((first.at - event.created_at).total_seconds()) < 60
    assert stored(event).status == FAILED


def test_a_success_writes_nothing_more(box: Outbox, crm: Receiver, database: Any) -> None:
    emit(20)
    with statements(database) as seen:
        box.process_pending_events()
    assert about_attempts(seen) == []
    assert (statuses(), count()) == ({DELIVERED: 20}, 0)


def test_a_batch_that_fails_takes_one_statement_however_large_it_is(box: Outbox, crm: Receiver, database: Any) -> None:
    numbers = {}
    for size in (2, 40):
        crm.outcomes = {str(number): Retry("no") for number in range(size)}
        emit(size)
        with statements(database) as seen:
            box.process_pending_events()
        numbers[size] = len(about_attempts(seen))
    assert numbers == {2: 1, 40: 1}
    assert count() == 42


@pytest.mark.parametrize(("kept", "numbers"), [("failures", (1, 0)), ("all", (1, 1)), ("none", (0, 0))])
def test_the_setting_decides_which_are_kept(configure: Configure, kept: str, numbers: tuple[int, int]) -> None:
    box = configure(attempts=kept)
    crm = Receiver()
    outbox.add_destination(crm)
    crm.outcomes["0"] = Retry("no")
    failing, succeeding = emit(2)
    box.process_pending_events()
    assert (len(attempts_of(failing)), len(attempts_of(succeeding))) == numbers


def test_what_was_not_tried_is_not_kept(configure: Configure) -> None:
    box = configure(attempts="all")
    crm = Receiver()
    crm.limits = Limits(open_after=1)  # type: ignore[attr-defined]
    outbox.add_destination(crm)
    crm.outcomes["0"] = Unavailable("down")
    tried, *others = emit(4)
    box.process_pending_events()
    assert (len(attempts_of(tried)), [len(attempts_of(each)) for each in others]) == (1, [0, 0, 0])
    pause("crm")
    emit(2)
    box.process_pending_events()
    assert count() == 1


def test_an_event_keeps_its_newest_attempts(box: Outbox, crm: Receiver) -> None:
    event = emit_one(max_attempts=1_000)
    other = emit_one(max_attempts=1_000)
    for number in range(MOST_PER_EVENT + 3):
        crm.outcomes["0"] = Retry(f"refused {number}")
        change(next_attempt_at=event.created_at, progress={"crm": {}})
        box.process_pending_events()
    assert [each.error for each in attempts_of(event)] == [
        f"refused {number}" for number in range(3, MOST_PER_EVENT + 3)
    ]
    assert len(attempts_of(other)) == MOST_PER_EVENT


def test_they_are_deleted_after_the_retention_and_with_their_event(box: Outbox, crm: Receiver) -> None:
    crm.outcomes = {"0": Failed("no"), "1": Failed("no")}
    first, second = emit(2)
    box.process_pending_events()
    deleted = apply(box.dialect, lambda _: None, DELETE, Filter(ids=(first.id,)))
    assert max(deleted) == 1
    assert (len(attempts_of(first)), len(attempts_of(second))) == (0, 1)
    box.delete_old_records()
    assert len(attempts_of(second)) == 1
    back = {
        "postgres": "at - interval '169 hours'",
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f000+00:00', at, '-169 hours')",
    }
    box.dialect.run(f"UPDATE outbox_attempt SET at = {back[box.dialect.name]}")  # noqa: S608  (the test's own words)
    box.delete_old_records()
    assert count() == 0


def test_none_is_added_to_an_event_that_was_erased_or_deleted_meanwhile(
    box: Outbox, crm: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outbox.delivery import settle

    crm.outcomes["0"] = Failed("no")
    erased = emit_one()
    write: Any = vars(settle)["write_attempts"]

    def after_erasure(*arguments: Any) -> None:
        change(erased, erased_at=erased.created_at)
        write(*arguments)

    monkeypatch.setattr(settle, "write_attempts", after_erasure)
    box.process_pending_events()
    assert count() == 0


def test_without_the_table_deliveries_go_on(box: Outbox, crm: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    box.dialect.run("DROP TABLE outbox_attempt")
    crm.outcomes["0"] = Failed("no")
    event, other = emit(2)
    box.process_pending_events()
    assert (stored(event).status, stored(other).status) == (FAILED, DELIVERED)
    assert "Deliveries go on without it" in caplog.text
