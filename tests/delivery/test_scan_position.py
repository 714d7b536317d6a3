"""Claims resume scanning where the last full batch ended, and still find events that are due before that."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.delivery.scan_position import ScanPosition
from tests.support.table import change, claimed, emit, emit_one, expire_leases, ids, on_postgres, statements, stored


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def position(clock: Clock) -> ScanPosition:
    return ScanPosition(clock)


@pytest.fixture
def box(box: Outbox, position: ScanPosition) -> Outbox:
    box.delivery = replace(box.delivery, scan_position=position)
    return box


def emit_apart(count: int) -> list[outbox.OutboxEvent]:
    """Events of an hour ago, each due a second after the one before; what else is emitted is due later."""
    events = emit(count)
    first = stored(events[0]).next_attempt_at - timedelta(hours=1)
    for number, event in enumerate(events):
        change(event, next_attempt_at=first + timedelta(seconds=number))
    return events


def behind(box: Outbox, event: outbox.OutboxEvent, first: outbox.OutboxEvent) -> None:
    """As if the event had been emitted before the first, by a transaction that has committed only now."""
    change(event, next_attempt_at=stored(first).next_attempt_at - timedelta(minutes=1))


class TestThePosition:
    def test_the_first_claim_is_a_full_scan(self, position: ScanPosition) -> None:
        assert position.resume_from(include_expired_leases=False) is None

    def test_after_a_full_batch_the_next_claim_resumes_where_it_ended(self, position: ScanPosition) -> None:
        position.resume_from(include_expired_leases=True)
        position.batch_ended_at("noon")
        assert (
            position.resume_from(include_expired_leases=True)
            == position.resume_from(include_expired_leases=False)
            == "noon"
        )

    def test_after_a_batch_that_was_not_full_the_next_claim_is_a_full_scan(self, position: ScanPosition) -> None:
        position.resume_from(include_expired_leases=True)
        position.batch_ended_at("noon")
        position.batch_ended_at(None)
        assert position.resume_from(include_expired_leases=True) is None

    @pytest.mark.parametrize(("seconds", "since"), [(0.9, "noon"), (1.1, None)])
    def test_once_a_second_there_is_a_full_scan(
        self, position: ScanPosition, clock: Clock, seconds: float, since: str | None
    ) -> None:
        position.resume_from(include_expired_leases=True)
        position.batch_ended_at("noon")
        clock.now += seconds
        assert position.resume_from(include_expired_leases=True) == since
        assert position.resume_from(include_expired_leases=True) == "noon"  # of several threads one does the full scan

    @pytest.mark.parametrize(("took", "pause"), [(0.001, 1.0), (0.3, 3.0), (5.0, 10.0)])
    def test_slow_full_scans_take_a_tenth_of_the_time_but_come_at_least_every_ten_seconds(
        self, position: ScanPosition, clock: Clock, took: float, pause: float
    ) -> None:
        position.resume_from(include_expired_leases=True)
        position.batch_ended_at("noon")
        position.full_scan_took(took, include_expired_leases=True)
        clock.now += pause - 0.1
        assert position.resume_from(include_expired_leases=True) == "noon"
        clock.now += 0.2
        assert position.resume_from(include_expired_leases=True) is None

    def test_a_full_scan_without_expired_leases_does_not_put_off_one_that_includes_them(
        self, position: ScanPosition
    ) -> None:
        position.resume_from(include_expired_leases=False)
        position.batch_ended_at("noon")
        assert position.resume_from(include_expired_leases=False) == "noon"
        assert position.resume_from(include_expired_leases=True) is None


class TestClaims:
    def test_a_backlog_is_claimed_to_its_end_in_order(self, box: Outbox) -> None:
        events = emit_apart(7)
        got = [ids(claimed(box, 3).events) for _ in range(3)]
        assert got == [ids(events[:3]), ids(events[3:6]), ids(events[6:])]
        assert claim(box.delivery, 3) is None

    def test_an_event_before_the_position_is_found_when_a_claim_returns_too_few(self, box: Outbox) -> None:
        *first, late = emit_apart(4)
        assert len(claimed(box, 3).events) == 3
        behind(box, late, first[0])
        assert ids(claimed(box, 3).events) == [late.id]

    def test_it_fills_up_the_short_batch_under_the_same_lease(self, box: Outbox) -> None:
        first = emit_apart(3)
        claimed(box, 3)
        early, other = emit(2)
        behind(box, early, first[0])
        batch = claimed(box, 3)
        assert ids(batch.events) == [early.id, other.id]  # the oldest first, as ever
        assert {stored(event).lease_id for event in (early, other)} == {batch.lease_id}

    def test_while_claims_are_full_it_is_found_within_a_second(self, box: Outbox, clock: Clock) -> None:
        events = emit_apart(9)
        claimed(box, 3)
        late = emit_one()
        behind(box, late, events[0])
        assert ids(claimed(box, 3).events) == ids(events[3:6])
        clock.now += 1.1
        assert ids(claimed(box, 3).events) == [late.id, *ids(events[6:8])]

    def test_an_expired_lease_before_the_position_is_found_within_a_second(self, box: Outbox, clock: Clock) -> None:
        events = emit_apart(9)
        claimed(box, 3)
        expire_leases(events[0])
        assert ids(claimed(box, 3).events) == ids(events[3:6])
        clock.now += 1.1
        alone = claimed(box, 3)
        assert (alone.from_expired_lease, ids(alone.events)) == (True, [events[0].id])
        assert ids(claimed(box, 3).events) == ids(events[6:])

    def test_an_event_from_an_expired_lease_never_fills_up_a_batch(self, box: Outbox) -> None:
        first = emit_apart(3)
        claimed(box, 3)
        fresh = emit_one()
        expire_leases(first[0])
        assert ids(claimed(box, 3).events) == [fresh.id]
        alone = claimed(box, 3)
        assert (alone.from_expired_lease, ids(alone.events)) == (True, [first[0].id])

    def test_a_full_batch_is_one_statement_and_any_other_at_most_two(self, box: Outbox) -> None:
        emit_apart(7)
        counts = []
        for _ in range(3):
            with statements(box.database) as seen:
                claimed(box, 3)
            counts.append(len([statement for statement in seen if "lease_until = " in statement]))
        assert counts[:2] == [1, 1]
        assert counts[2] <= 2


@on_postgres
class TestOnPostgres:
    @pytest.mark.usefixtures("new_tables")
    def test_a_claim_reads_no_more_with_many_in_flight_than_with_none(self, box: Outbox) -> None:
        emit(5_000)  # of which each thousand are due at the same time
        for _ in range(45):
            claimed(box, 100)
        box.database.execute_sql("VACUUM ANALYZE outbox_event")
        far, near = (
            rows_read(box, box.dialect.earliest_time),
            rows_read(box, box.delivery.scan_position.resume_from(include_expired_leases=True)),
        )
        assert far > 4_000
        assert near < 1_200


def rows_read(box: Outbox, since: object) -> int:
    """Return how many rows the scan of the index reads."""
    lease = "00000000-0000-0000-0000-000000000001"
    with box.database.atomic() as transaction:
        statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {box.dialect.statements.claim}"
        ((found,),) = box.database.execute_sql(statement, (since, True, 100, lease, 30.0)).fetchall()
        transaction.rollback()
    (scan,) = [node for node in nodes(found[0]["Plan"]) if node.get("Index Name") == "idx_outbox_pending_next"]
    return int(scan["Actual Rows"]) + int(scan.get("Rows Removed by Filter", 0))


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]
