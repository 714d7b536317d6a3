"""An event with a timestamp that Python can't represent is shown, and so are all others."""

from datetime import datetime

import psycopg
import pytest

import outbox
from outbox.admin import queries
from outbox.admin.doctor.run_checks import run_checks
from outbox.admin.metrics import families
from outbox.admin.overview import overview
from outbox.core import Outbox
from outbox.operations.filters import Filter
from outbox.storage.models import FAILED
from outbox.storage.timestamp import EARLIEST, LATEST
from tests.support.table import change, emit, on_postgres

pytestmark = on_postgres

UNREADABLE = [
    ("infinity", LATEST),
    ("-infinity", EARLIEST),
    ("0044-03-15 12:00:00+00 BC", EARLIEST),
    ("12000-01-01 00:00:00+00", LATEST),
]
COLUMNS = ("next_attempt_at", "lease_until", "delivered_at", "created_at", "updated_at")


def write(box: Outbox, column: str, text: str, aggregate_id: str) -> None:
    box.dialect.run(f"UPDATE outbox_event SET {column} = %s WHERE aggregate_id = %s", (text, aggregate_id))  # noqa: S608
    if column == "delivered_at":
        box.dialect.run("UPDATE outbox_event SET next_attempt_at = NULL WHERE aggregate_id = %s", (aggregate_id,))


@pytest.fixture
def every_column(box: Outbox, request: pytest.FixtureRequest) -> str:
    """An event for each column, which has the same timestamp there, and one that was not changed."""
    text: str = request.param
    emit(len(COLUMNS) + 1)
    for number, column in enumerate(COLUMNS):
        write(box, column, text, str(number))
    return text


@pytest.mark.parametrize(("text", "read"), UNREADABLE)
@pytest.mark.parametrize("column", COLUMNS)
def test_an_event_is_shown_with_the_nearest_time_that_can_be_read(
    box: Outbox, column: str, text: str, read: datetime
) -> None:
    event = emit(1)[0]
    write(box, column, text, event.aggregate_id)
    found = queries.find(box.dialect, event.id)
    assert found is not None
    assert getattr(found, column) == read


@pytest.mark.parametrize("every_column", [text for text, _ in UNREADABLE], indirect=True)
def test_lists_overview_metrics_and_doctor_show_all_events(box: Outbox, every_column: str) -> None:
    assert len(queries.page(box.dialect, Filter()).events) == len(COLUMNS) + 1
    counts = overview(box.dialect).counts
    assert sum(count.number for count in counts.values()) == len(COLUMNS) + 1
    assert any(family.name == "outbox_up" for family in families(box))
    assert not [found for found in run_checks(box) if "The check failed" in found.what]


@pytest.mark.parametrize("every_column", [text for text, _ in UNREADABLE], indirect=True)
def test_other_events_are_delivered(box: Outbox, every_column: str) -> None:
    delivered: list[str] = []
    outbox.handler("*", name="note")(lambda event: delivered.append(event.aggregate_id))
    box.drain()
    assert str(len(COLUMNS)) in delivered


@pytest.mark.parametrize("text", [text for text, _ in UNREADABLE])
def test_the_causes_of_failures_are_shown_whenever_they_happened(box: Outbox, text: str) -> None:
    (event,) = emit(1)
    change(event, status=FAILED, next_attempt_at=None, error_message="crm: refused")
    write(box, "updated_at", text, event.aggregate_id)
    (cause,) = overview(box.dialect).failures
    assert cause.events == 1


def test_a_duplicate_is_returned_although_its_times_cant_be_read(box: Outbox) -> None:
    first = box.emit("Order", 1, "order.placed")
    write(box, "created_at", "infinity", "1")
    assert box.emit("Order", 1, "order.placed", on_duplicate="ignore").id == first.id


def test_the_applications_own_queries_read_timestamps_as_before(box: Outbox) -> None:
    queries.page(box.dialect, Filter())
    with pytest.raises(psycopg.DataError):
        box.database.execute_sql("SELECT 'infinity'::timestamptz").fetchone()
