"""The keys that are blocked: which, at which destination, behind which event; however many events wait."""

from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.admin.blocked_keys import (
    DESTINATIONS_READ,
    EventOrder,
    describe_head,
    how_to_go_on,
    order_of,
    read_blocked_keys,
)
from outbox.admin.event_state import next_step
from outbox.admin.overview import backlog, overview
from outbox.core import Outbox
from outbox.destinations.description import describe_destination
from outbox.operations.count import Count
from outbox.storage.models import EVENT, PENDING, Waiting
from tests.admin.doctor.published_processes import publish_process
from tests.support.blocked_keys import Crm, block, keyed, run
from tests.support.table import change, claimed, emit, let_pass, on_postgres, stored


@pytest.fixture
def crm(box: Outbox) -> Crm:
    return Crm()


def waited(key: str, **time: float) -> None:
    """Let the events of a key have waited that much longer."""
    dialect = outbox.current().dialect
    for row in dialect.select(Waiting.select().where(Waiting.ordering_key == key)):
        earlier = Waiting.update(since=row.since - timedelta(**time)).where(Waiting.event_id == row.event_id)
        earlier.execute(dialect.database)


def test_without_blocked_keys_there_is_nothing_to_see(box: Outbox, crm: Crm) -> None:
    keyed("1", "2")
    emit(3)
    run(box)
    found = read_blocked_keys(box.dialect)
    assert (found.count, found.since, found.longest) == (Count(0), None, [])


def test_a_key_is_blocked_by_an_event_that_has_failed(box: Outbox, crm: Crm) -> None:
    head, *_ = block(box, crm, followers=3)
    found = read_blocked_keys(box.dialect)
    (blocked,) = found.longest
    assert (blocked.key, blocked.destination, blocked.waiting) == ("k", "crm", Count(3))
    assert blocked.head is not None
    assert (blocked.head.id, blocked.head.error_message, blocked.is_failed) == (
        head.id,
        "crm: Reject: no such customer",
        True,
    )
    assert (found.count, found.since) == (Count(1), blocked.since)


def test_a_key_is_blocked_by_an_event_that_waits_for_a_retry(box: Outbox, crm: Crm) -> None:
    head, *_ = block(box, crm, failed=False)
    (blocked,) = read_blocked_keys(box.dialect).longest
    assert blocked.head is not None
    assert (blocked.head.id, blocked.is_failed) == (head.id, False)
    assert describe_head(blocked, box.dialect.now()).startswith("next attempt in 59 s")
    let_pass(minutes=2)
    (blocked,) = read_blocked_keys(box.dialect).longest
    assert describe_head(blocked, box.dialect.now()).startswith("due for 1 min")
    claimed(box)
    (blocked,) = read_blocked_keys(box.dialect).longest
    assert describe_head(blocked, box.dialect.now()) == "being delivered"


def test_a_key_is_listed_for_each_destination_with_what_holds_it_back_there(box: Outbox, crm: Crm) -> None:
    mail = Crm("mail", on_failed="skip")
    search = Crm("search")
    crm.rejected = {"1"}
    search.rejected = {"2"}
    mail.refused = {"3"}
    first, second, third, _ = keyed("1", "2", "3", "4")
    run(box)
    publish_process(
        box, destinations={name: describe_destination(each) for name, each in box.registry.destinations.items()}
    )
    found = {each.destination: each for each in read_blocked_keys(box.dialect).longest}
    heads = {name: each.head.id for name, each in found.items() if each.head is not None}
    assert heads == {"crm": first.id, "search": second.id, "mail": third.id}
    assert {name: each.waiting.number for name, each in found.items()} == {"crm": 3, "search": 2, "mail": 1}


def test_an_event_that_failed_where_failures_are_skipped_is_no_head(box: Outbox, crm: Crm) -> None:
    """It holds back the key at crm only. What mail waits for is the event after it."""
    mail = Crm("mail", on_failed="skip")
    crm.rejected = mail.rejected = {"1"}
    mail.refused = {"2"}
    first, second, _ = keyed("1", "2", "3")
    run(box)
    publish_process(
        box, destinations={name: describe_destination(each) for name, each in box.registry.destinations.items()}
    )
    heads = {each.destination: each.head for each in read_blocked_keys(box.dialect).longest}
    assert {name: head and head.id for name, head in heads.items()} == {"crm": first.id, "mail": second.id}


def test_one_whose_content_was_erased_can_only_be_skipped(box: Outbox, crm: Crm) -> None:
    crm.rejected = {"1"}
    first, _ = keyed("1", "2")
    run(box)
    change(first, erased_at=first.created_at)
    assert how_to_go_on(read_blocked_keys(box.dialect).longest) == [
        "It can't be retried, since its content was erased.",
        f"Go on without the failed event: `outbox skip {first.id}`.",
    ]


def test_an_event_that_failed_at_one_destination_blocks_its_key_there_while_another_one_still_tries_it(
    box: Outbox, crm: Crm
) -> None:
    mail = Crm("mail")
    crm.rejected = mail.refused = {"1"}
    first, _ = keyed("1", "2")
    run(box)
    assert stored(first).status == PENDING
    found = {each.destination: each for each in read_blocked_keys(box.dialect).longest}
    assert (found["crm"].is_failed, found["mail"].is_failed) == (True, False)
    now = box.dialect.now()
    assert describe_head(found["crm"], now) == "failed here, not finished elsewhere"
    assert describe_head(found["mail"], now).startswith("next attempt in")
    assert how_to_go_on(found.values()) == [
        (
            f"Fix the cause and run `outbox fail {first.id}`, which ends the tries elsewhere, and then "
            f"`outbox retry {first.id}`."
        ),
        f"Or go on without the failed event: `outbox skip {first.id}`.",
    ]
    assert how_to_go_on([found["mail"]]) == []
    shown = next_step(stored(first), now, box.settings, order_of(box.dialect, stored(first)))
    assert f"`outbox skip {first.id}`" in shown


def test_the_head_is_found_behind_many_events_that_hold_back_the_key_elsewhere(box: Outbox, crm: Crm) -> None:
    other = Crm("other", ordered=False)
    other.refused = {str(number) for number in range(120)}
    crm.refused = {"119"}
    *_, head, _ = keyed(*(str(number) for number in range(121)))
    run(box)
    (blocked,) = read_blocked_keys(box.dialect).longest
    assert blocked.head is not None
    assert blocked.head.id == head.id


def test_if_nothing_holds_a_key_back_any_more_it_has_no_head(box: Outbox, crm: Crm) -> None:
    head, *_ = block(box, crm)
    head.delete_instance()
    (blocked,) = read_blocked_keys(box.dialect).longest
    assert (blocked.head, blocked.is_failed) == (None, False)
    assert describe_head(blocked, box.dialect.now()) == "released within seconds"


def test_the_longest_wait_is_first_and_the_rest_is_counted(box: Outbox, crm: Crm) -> None:
    for key in ("b", "c", "a", "d"):
        block(box, crm, key=key)
    waited("c", hours=2)
    waited("a", hours=1)
    found = read_blocked_keys(box.dialect, limit=2)
    assert [each.key for each in found.longest] == ["c", "a"]
    assert found.count == Count(4)
    assert found.since == found.longest[0].since


def test_one_key_is_read_alone(box: Outbox, crm: Crm) -> None:
    Crm("mail").rejected = {"b-0"}
    for key in ("a", "b", "c"):
        block(box, crm, key=key)
    found = read_blocked_keys(box.dialect, key="b", limit=10)
    assert sorted((each.key, each.destination) for each in found.longest) == [("b", "crm"), ("b", "mail")]
    assert found.count == Count(2)
    assert read_blocked_keys(box.dialect, key="", limit=10).longest == []


def test_counting_stops_at_the_cap(box: Outbox, crm: Crm) -> None:
    for key in ("a", "b", "c"):
        block(box, crm, key=key, followers=3)
    found = read_blocked_keys(box.dialect, cap=2)
    assert found.count == Count(2, at_least=True)
    assert backlog(box.dialect, box.dialect.now(), cap=2).waiting == Count(2, at_least=True)
    assert [each.waiting for each in found.longest] == [Count(2, at_least=True)] * 2


class TestOneEvent:
    def test_waits_behind_the_head_wherever_it_waits(self, box: Outbox, crm: Crm) -> None:
        head, second, third = block(box, crm)
        for event in (second, third):
            (wait,) = order_of(box.dialect, stored(event)).waits
            assert wait.head is not None
            assert (wait.destination, wait.head.id, wait.waiting) == ("crm", head.id, Count(2))
        assert order_of(box.dialect, stored(head)).waits == []

    def test_an_event_without_a_key_waits_nowhere(self, box: Outbox, crm: Crm) -> None:
        block(box, crm)
        (event,) = emit(1)
        assert order_of(box.dialect, stored(event)) == EventOrder()

    def test_holds_back_the_events_behind_it(self, box: Outbox, crm: Crm) -> None:
        head, second, _ = block(box, crm)
        (held,) = order_of(box.dialect, stored(head)).holds_back
        assert (held.destination, held.waiting) == ("crm", Count(2))
        assert order_of(box.dialect, stored(second)).holds_back == []

    def test_an_event_that_was_tried_elsewhere_waits_all_the_same(self, box: Outbox, crm: Crm) -> None:
        """It is due for its retry at mail. That it waits at crm is in the table only."""
        mail = Crm("mail")
        crm.rejected, mail.refused = {"1"}, {"2"}
        first, second = keyed("1", "2")
        run(box)
        (wait,) = order_of(box.dialect, stored(second)).waits
        assert wait.head is not None
        assert (wait.destination, wait.head.id) == ("crm", first.id)


class TestTheOverview:
    def test_counts_events_that_wait_as_pending_and_not_as_due_or_old(self, box: Outbox, crm: Crm) -> None:
        block(box, crm)
        let_pass(hours=5)
        view = overview(box.dialect)
        assert view.counts[PENDING] == view.counts_by_kind[EVENT][PENDING] == view.backlog.unfinished == Count(2)
        assert (view.backlog.due, view.backlog.oldest_due_at, view.backlog.oldest_created_at) == (Count(0), None, None)
        assert (view.blocked.count, view.backlog.waiting) == (Count(1), Count(2))

    def test_shows_the_age_of_what_waits_for_something_else(self, box: Outbox, crm: Crm) -> None:
        block(box, crm)
        let_pass(hours=5)
        (event,) = emit(1)
        view = overview(box.dialect)
        assert (view.backlog.oldest_created_at, view.counts[PENDING]) == (stored(event).created_at, Count(3))


@on_postgres
def test_among_thousands_of_keys_and_events_the_queries_step_through_the_index(
    box: Outbox, database: Any, crm: Crm
) -> None:
    database.execute_sql(
        """
        INSERT INTO outbox_waiting (ordering_key, destination, seq, event_id, since)
        SELECT 'key ' || key, destination, seq, md5(random()::text)::uuid, now()
        FROM generate_series(1, 2000) AS key, unnest(ARRAY['crm', 'mail']) AS destination, generate_series(1, 5) AS seq
        UNION ALL SELECT 'hot', 'crm', seq, md5(random()::text)::uuid, now() FROM generate_series(1, 50000) AS seq
        """
    )
    database.execute_sql("ANALYZE outbox_waiting")
    statements = box.dialect.statements
    for statement, parameters in (
        (statements.blocked_pairs, ("", "", 10_001)),
        (statements.blocked_pairs, ("hot", "", DESTINATIONS_READ)),
        (statements.count_waiting, ("hot", "crm", 10_001)),
    ):
        rows = database.execute_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", parameters).fetchall()
        plan = "\n".join(line for (line,) in rows)
        assert "outbox_waiting_pkey" in plan
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan, plan
    database.execute_sql("INSERT INTO outbox_waiting VALUES ('zoo', 'crm', 1, md5(random()::text)::uuid, now())")
    found = read_blocked_keys(box.dialect)
    assert found.count == Count(4_002)


@on_postgres
def test_events_that_wait_are_counted_from_the_end_of_the_index_of_due_events(box: Outbox, database: Any) -> None:
    emit(1_000)
    database.execute_sql("ANALYZE outbox_event")
    rows = database.execute_sql(f"EXPLAIN {box.dialect.statements.count_parked}", (10_001,)).fetchall()
    plan = "\n".join(line for (line,) in rows)
    assert "idx_outbox_pending_next" in plan
    assert "Seq Scan" not in plan, plan
