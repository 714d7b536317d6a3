"""The doctor's check of events that handlers can't read as objects of their classes."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import outbox
from outbox.core import Outbox
from outbox.events.event_types import event_types
from tests.admin.doctor.findings import advice_of, finding_of
from tests.support.table import emit


@dataclass
class Placed:
    total: int


@pytest.fixture(autouse=True)
def _declared() -> Iterator[None]:
    event_types.clear()
    outbox.event("order.placed")(Placed)
    yield
    event_types.clear()


def test_without_such_events_all_is_well(box: Outbox) -> None:
    outbox.handler(Placed, name="billing")(lambda _: None)
    emit(2, payload={"total": 1})
    assert finding_of(box, "types").level == "ok"
    box.process_pending_events()
    assert finding_of(box, "types").what == "Handlers could read every event that waits or has failed."


@pytest.mark.parametrize(("attempts", "said"), [(1, "have failed, because billing"), (5, "wait, because billing")])
def test_events_that_do_not_fit_their_class_are_a_problem(box: Outbox, attempts: int, said: str) -> None:
    outbox.handler(Placed, name="billing", max_attempts=attempts)(lambda _: None)
    emit(3, payload={"total": "hush"})
    box.process_pending_events()
    found = finding_of(box, "types")
    assert found.level == "problem"
    assert f"3 events of the type 'order.placed' {said} can't read them: UnreadableEvent: " in found.what
    assert "$.total: Expected `int`, got `str`" in found.what
    assert "hush" not in found.what
    assert ("outbox retry" in advice_of(found)) == (attempts == 1)


def test_events_that_are_newer_than_the_code_are_a_problem(box: Outbox) -> None:
    outbox.handler(Placed, name="billing")(lambda _: None)
    emit(1, headers={"event_version": 2})
    box.process_pending_events()
    found = finding_of(box, "types")
    assert found.level == "problem"
    assert (
        "1 event of the type 'order.placed' can't be read by billing: 'order.placed' version 2 is newer" in found.what
    )
    assert "After a rollback" in advice_of(found)
