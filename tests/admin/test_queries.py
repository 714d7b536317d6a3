"""The queries of operators: every filter finds its events, page by page, and no query reads the whole table."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import outbox
from outbox.admin.queries import SCAN_LIMITS, Page, ScanLimits, actors, count, event_types, find, kinds_of, page, search
from outbox.core import Outbox
from outbox.errors import SettingsError
from outbox.operations.count import Count
from outbox.operations.filters import Filter
from outbox.storage.ids import uuid7
from outbox.storage.models import KINDS, OutboxEvent
from tests.support.table import change, claimed, emit, emit_one, ids, statements

DAY = timedelta(days=1)


def found(box: Outbox, limits: ScanLimits = SCAN_LIMITS, **filters: Any) -> list[UUID]:
    return ids(page(box.dialect, Filter(**filters), limits=limits).events)


# An index finds few events, or too many to sort.
few_or_many = pytest.mark.parametrize("limits", [SCAN_LIMITS, ScanLimits(few=0)], ids=["few", "many"])


@pytest.fixture
def mixed(box: Outbox) -> dict[str, OutboxEvent]:
    """Return one event in each state, and some that differ in other fields."""
    outbox.handler("order.placed", name="good")(lambda event: None)

    @outbox.handler("order.broken", name="bad")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Reject("a stone in the way")

    events = {
        "delivered": emit_one("order.placed"),
        "failed": emit_one("order.broken", tenant_id="acme"),
    }
    box.process_pending_events()
    events["sending"] = emit_one("user.created", aggregate_type="User", aggregate_id="7", correlation_id="story")
    claimed(box)
    events["pending"] = emit_one("user.created", aggregate_type="User", aggregate_id="8", idempotency_key="a key")
    return events


class TestFilters:
    @pytest.mark.parametrize("status", ["pending", "sending", "delivered", "failed"])
    @few_or_many
    def test_by_status(self, box: Outbox, mixed: dict[str, OutboxEvent], status: str, limits: ScanLimits) -> None:
        assert found(box, limits, status=status) == [mixed[status].id]
        assert count(box.dialect, Filter(status=status), limits=limits) == Count(1)

    @pytest.mark.parametrize(
        ("filters", "names"),
        [
            ({}, ["pending", "sending", "failed", "delivered"]),
            ({"event_type": "user.created"}, ["pending", "sending"]),
            ({"event_type": "user"}, []),
            ({"aggregate_type": "User"}, ["pending", "sending"]),
            ({"aggregate_type": "User", "aggregate_id": "7"}, ["sending"]),
            ({"aggregate_type": "Order", "aggregate_id": "7"}, []),
            ({"aggregate_id": "8"}, ["pending"]),
            ({"idempotency_key": "a key"}, ["pending"]),
            ({"idempotency_key": "a key", "event_type": "order.placed"}, []),
            ({"correlation_id": "story"}, ["sending"]),
            ({"tenant_id": "acme"}, ["failed"]),
            ({"destination": "bad"}, ["failed"]),
            ({"destination": "good"}, []),
            ({"error": "STONE"}, ["failed"]),
            ({"error": "%"}, []),
            ({"error": "_"}, []),
            ({"status": "failed", "tenant_id": "acme", "event_type": "order.broken"}, ["failed"]),
            ({"status": "failed", "tenant_id": "other"}, []),
            ({"status": "pending", "event_type": "user.created"}, ["pending"]),
        ],
        ids=repr,
    )
    @few_or_many
    def test_several_filters_must_all_match(
        self, box: Outbox, mixed: dict[str, OutboxEvent], filters: dict[str, Any], names: list[str], limits: ScanLimits
    ) -> None:
        assert found(box, limits, **filters) == [mixed[name].id for name in names]
        assert count(box.dialect, Filter(**filters), limits=limits) == Count(len(names))

    @few_or_many
    def test_by_ids(self, box: Outbox, mixed: dict[str, OutboxEvent], limits: ScanLimits) -> None:
        wanted = (mixed["failed"].id, uuid7(), mixed["pending"].id)
        assert found(box, limits, ids=wanted) == [mixed["pending"].id, mixed["failed"].id]
        assert found(box, limits, ids=()) == []

    @few_or_many
    def test_by_time_of_creation_since_is_inclusive_and_until_exclusive(self, box: Outbox, limits: ScanLimits) -> None:
        events = emit(3)
        moments = [event.created_at for event in OutboxEvent.select().order_by(OutboxEvent.id)]
        start = moments[0].replace(microsecond=0)
        for number, event in enumerate(events):
            change(event, created_at=start + number * timedelta(seconds=10))
        assert found(box, limits, since=start + timedelta(seconds=10)) == [events[2].id, events[1].id]
        assert found(box, limits, until=start + timedelta(seconds=10)) == [events[0].id]
        assert found(box, limits, since=start + DAY) == []
        assert found(box, limits, until=start - DAY) == []

    def test_a_waiting_destination_counts_as_not_delivered(self, box: Outbox) -> None:
        @outbox.handler("order.*", name='the "first"')
        def later(event: outbox.Event) -> None:
            raise outbox.RetryLater(3600)

        outbox.handler("order.*", name="second")(lambda event: None)
        event = emit_one()
        box.process_pending_events()
        assert found(box, destination='the "first"') == [event.id]
        assert found(box, destination="second") == []

    def test_an_unknown_status_or_a_time_without_a_zone_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="There is no status 'done': it is one of pending, sending"):
            Filter(status="done")
        with pytest.raises(SettingsError, match="since needs a timezone"):
            Filter(since=datetime(2026, 1, 1))  # noqa: DTZ001

    def test_to_json_has_the_fields_that_are_set(self) -> None:
        id = uuid7()
        asked = Filter(ids=(id,), status="failed", since=datetime(2026, 1, 31, 12, tzinfo=UTC))
        assert asked.to_json() == {
            "ids": [str(id)],
            "status": "failed",
            "since": "2026-01-31 12:00:00.000000+00:00",
        }
        assert Filter().is_empty
        assert not asked.is_empty


def pages(box: Outbox, which: Filter, size: int, limits: ScanLimits) -> Iterator[Page]:
    """Yield all pages."""
    current = page(box.dialect, which, size=size, limits=limits)
    yield current
    while current.after is not None:
        current = page(box.dialect, which, after=current.after, size=size, limits=limits)
        yield current


class TestPages:
    @pytest.mark.parametrize("which", [Filter(), Filter(event_type="order.placed"), Filter(aggregate_type="Order")])
    @few_or_many
    def test_are_newest_first_without_gaps_or_doubles(self, box: Outbox, which: Filter, limits: ScanLimits) -> None:
        emit(3, "other.type", aggregate_type="Other")
        events = emit(7)
        emit(3, "other.type", aggregate_type="Other")
        listed = [id for each in pages(box, which, 3, limits) for id in ids(each.events)]
        everything = sorted(ids(list(OutboxEvent.select())), reverse=True)
        assert listed == (everything if which.is_empty else sorted(ids(events), reverse=True))

    @pytest.mark.parametrize(("size_", "more"), [(4, True), (5, False), (6, False)])
    def test_say_whether_there_are_more(self, box: Outbox, size_: int, more: bool) -> None:
        emit(5)
        first = page(box.dialect, Filter(), size=size_)
        assert (len(first.events), first.after is not None) == (min(size_, 5), more)

    def test_events_that_are_emitted_meanwhile_do_not_shift_them(self, box: Outbox) -> None:
        before = emit(4)
        first = page(box.dialect, Filter(), size=2)
        emit(3)
        second = page(box.dialect, Filter(), after=first.after, size=2)
        assert ids(first.events) + ids(second.events) == sorted(ids(before), reverse=True)


class TestWindows:
    NARROW = ScanLimits(few=0, window=10)

    def test_end_with_the_oldest_scanned_event_and_continue_from_there(self, box: Outbox) -> None:
        old = emit_one(aggregate_type="Rare")
        others = emit(15)
        first = page(box.dialect, Filter(aggregate_type="Rare"), limits=self.NARROW)
        assert first.events == []
        assert first.looked_back_to is not None
        assert first.looked_back_to.id == sorted(ids(others))[5]
        second = page(box.dialect, Filter(aggregate_type="Rare"), after=first.after, limits=self.NARROW)
        assert (ids(second.events), second.after, second.looked_back_to) == ([old.id], None, None)

    def test_a_full_page_does_not_report_the_end_of_the_window(self, box: Outbox) -> None:
        emit(15, tenant_id="acme")
        first = page(box.dialect, Filter(tenant_id="acme"), size=3, limits=self.NARROW)
        assert (len(first.events), first.looked_back_to) == (3, None)

    def test_counts_beyond_the_window_are_at_least(self, box: Outbox) -> None:
        emit(15, tenant_id="acme")
        assert count(box.dialect, Filter(tenant_id="acme"), limits=self.NARROW) == Count(10, at_least=True)
        assert str(count(box.dialect, Filter(tenant_id="acme"), cap=4, limits=self.NARROW)) == "4+"

    @pytest.mark.parametrize("field", ["tenant_id", "correlation_id"])
    def test_a_tenant_and_a_correlation_id_have_a_window_of_their_own(self, box: Outbox, field: str) -> None:
        given: dict[str, Any] = {field: "acme"}
        old = emit(12, **given)
        emit(15)
        newest = sorted(ids(old), reverse=True)
        assert found(box, self.NARROW, **given) == newest[:10]
        assert count(box.dialect, Filter(**given), limits=self.NARROW) == Count(10, at_least=True)

    def test_failed_events_have_a_window_of_their_own(self, box: Outbox) -> None:
        @outbox.handler("*", name="bad")
        def refuse(event: outbox.Event) -> None:
            raise outbox.Reject("no")

        failed = emit(3)
        box.process_pending_events()
        emit(15)
        assert sorted(found(box, self.NARROW, status="failed")) == sorted(ids(failed))
        assert count(box.dialect, Filter(status="failed"), limits=self.NARROW) == Count(3)


def test_counts_are_shown_with_a_plus_where_counting_stopped() -> None:
    assert [str(Count(1_234)), str(Count(10_000, at_least=True))] == ["1,234", "10,000+"]


def test_every_type_is_found_once_by_stepping_through_the_index(box: Outbox) -> None:
    assert event_types(box.dialect) == []
    for type in ("b", "a", "c", "b", "ä"):
        emit(2, type)
    assert sorted(event_types(box.dialect)) == ["a", "b", "c", "ä"]


class TestTooManyNames:
    """Nothing limits how many event types there are, so the lists of them have a limit."""

    FEW = ScanLimits(names=3)

    def test_only_the_first_are_listed_and_only_their_rows_are_read(self, box: Outbox) -> None:
        for number in range(7):
            emit_one(f"type.{number}")
        assert event_types(box.dialect, self.FEW) == ["type.0", "type.1", "type.2"]
        assert actors(box.dialect, self.FEW) == []
        assert len(event_types(box.dialect, ScanLimits(names=7))) == 7

    def test_a_key_is_searched_among_the_newest_events(self, box: Outbox) -> None:
        for number in range(4):
            emit_one(f"type.{number}", idempotency_key="key")
        assert len(found(box, ScanLimits(names=4), idempotency_key="key")) == 4
        assert len(found(box, self.FEW, idempotency_key="key")) == 4
        narrow = page(box.dialect, Filter(idempotency_key="key"), limits=ScanLimits(names=3, window=2))
        assert (len(narrow.events), narrow.looked_back_to is not None) == (2, True)
        assert found(box, ScanLimits(names=3, window=1), idempotency_key="key", event_type="type.0") != []

    def test_any_kind_may_be_among_the_rest(self, box: Outbox) -> None:
        for number in range(4):
            emit_one(f"type.{number}")
        assert kinds_of(box.dialect, Filter(), ScanLimits(names=4)) == ["event"]
        assert kinds_of(box.dialect, Filter(), self.FEW) == list(KINDS)

    def test_the_default_limit_holds_on_the_page_with_many_more(self, box: Outbox) -> None:
        outbox.emit_many(("Note", number, f"type.{number:04}") for number in range(1_100))
        assert len(event_types(box.dialect)) == SCAN_LIMITS.names == 1_000


class TestSearch:
    def test_finds_by_id_key_and_aggregate(self, box: Outbox) -> None:
        event = outbox.emit("Order", "4711", "order.placed", idempotency_key="the key")
        other = outbox.emit("Invoice", "4711", "invoice.sent")
        emit_one()
        for text in (str(event.id), event.id.hex, f"  {event.id} ", "the key", "Order:4711"):
            assert ids(search(box.dialect, text)) == [event.id], text
        assert ids(search(box.dialect, "4711")) == sorted([event.id, other.id], reverse=True)

    @pytest.mark.parametrize("text", ["", "   ", "nothing like it", ":", "Order:", "%", "'", "\ud800", "\x00"])
    def test_finds_nothing_else(self, box: Outbox, text: str) -> None:
        emit_one()
        assert search(box.dialect, text) == []


def test_one_event_is_found_with_its_payload_or_not_at_all(box: Outbox) -> None:
    event = emit_one(payload={"total": 3})
    stored = find(box.dialect, event.id)
    assert stored is not None
    assert stored.payload == {"total": 3}
    assert find(box.dialect, uuid7()) is None


@pytest.mark.parametrize(
    "which",
    [
        Filter(),
        Filter(status="failed"),
        Filter(status="pending"),
        Filter(event_type="order.placed"),
        Filter(aggregate_id="1"),
        Filter(tenant_id="acme"),
    ],
)
def test_a_page_takes_a_handful_of_statements_each_with_a_limit(box: Outbox, which: Filter) -> None:
    emit(5)
    with statements(box.database) as seen:
        page(box.dialect, which)
    reading = [statement for statement in seen if "statement_timeout" not in statement]
    assert len(reading) <= 3
    assert all(" LIMIT " in statement for statement in reading)


@pytest.mark.parametrize(
    "field", ["event_type", "aggregate_id", "idempotency_key", "tenant_id", "destination", "error"]
)
@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_text_that_no_event_can_have_is_refused_before_the_database_is_asked(field: str, text: str) -> None:
    fields: dict[str, Any] = {field: text}
    with pytest.raises(SettingsError, match=f"{field} contains characters that no event can have"):
        Filter(**fields)
