"""emit and emit_many: what is stored, what is refused, and what a duplicate does."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import peewee
import psycopg
import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from outbox.storage.timestamp import EARLIEST
from tests.conftest import Configure, Note
from tests.support.crowd import PATIENCE_SECONDS, at_once, elsewhere
from tests.support.servers import wait_until
from tests.support.table import claimed, end_session, ids, on_postgres, statements

A_MOMENT = timedelta(seconds=30)


def emit(number: object = 1, **options: Any) -> OutboxEvent:
    return outbox.emit("User", number, "user.created", {"n": 1}, **options)


def verbs(seen: list[str]) -> list[str]:
    return [statement.split()[0] for statement in seen]


def users(*numbers: int) -> list[tuple[str, int, str]]:
    return [("User", number, "user.created") for number in numbers]


def stored() -> list[OutboxEvent]:
    return list(OutboxEvent.select().order_by(OutboxEvent.seq))


def stored_ids() -> list[str]:
    return [event.aggregate_id for event in stored()]


def contents(event: OutboxEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in OutboxEvent._meta.fields}


def notes() -> list[str]:
    return [note.text for note in Note.select().order_by(peewee.SQL("id"))]


# What emit returns


def test_an_emitted_event_is_pending_and_due_now(box: Outbox) -> None:
    event = emit()
    assert str(event) == "user.created (Pending)"
    assert (event.status, event.attempts, event.max_attempts) == ("pending", 0, 5)
    assert event.next_attempt_at == event.created_at == event.updated_at
    assert abs(datetime.now(UTC) - event.created_at) < A_MOMENT


def test_the_returned_event_equals_the_stored_row(box: Outbox) -> None:
    event = emit(headers={"h": [1]}, correlation_id="c", tenant_id="t", max_attempts=7, deliver_after=A_MOMENT)
    (row,) = stored()
    assert contents(event) == contents(row)


def test_the_returned_timestamps_are_aware_and_in_utc(box: Outbox) -> None:
    event = emit()
    for moment in (event.created_at, event.updated_at, event.next_attempt_at, stored()[0].created_at):
        assert moment.tzinfo is UTC


def test_ids_are_version_7_and_rise(box: Outbox) -> None:
    ids = [emit(number).id for number in range(20)]
    assert {(type(id), id.version) for id in ids} == {(UUID, 7)}
    assert ids == sorted(ids)


def test_seq_follows_the_order_of_emission(box: Outbox) -> None:
    numbers = [emit(number).seq for number in range(20)]
    assert numbers == sorted(set(numbers))


def test_deliver_after_a_timedelta_counts_from_the_databases_now(box: Outbox) -> None:
    event = emit(deliver_after=timedelta(hours=2, milliseconds=250))
    assert event.next_attempt_at - event.created_at == timedelta(hours=2, milliseconds=250)
    assert stored()[0].next_attempt_at == event.next_attempt_at


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-3, minutes=-30))])
def test_deliver_after_a_moment_is_kept_to_the_microsecond(box: Outbox, zone: timezone) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=zone)
    event = emit(deliver_after=moment)
    assert event.next_attempt_at == stored()[0].next_attempt_at == moment


def test_what_is_not_due_yet_is_not_delivered(box: Outbox) -> None:
    emit(1, deliver_after=timedelta(hours=1))
    emit(2, deliver_after=datetime.now(UTC) + timedelta(hours=1))
    emit(3, deliver_after=datetime.now(UTC) - timedelta(hours=1))
    emit(4, deliver_after=timedelta(0))
    got: list[str] = []
    outbox.handler("*")(lambda event: got.append(event.aggregate_id))
    assert outbox.process_pending_events() == {"processed": 2, "remaining": 0}
    assert sorted(got) == ["3", "4"]


def test_payload_and_headers_default_to_empty_objects(box: Outbox) -> None:
    event = outbox.emit("User", 1, "user.created")
    assert (event.payload, event.headers) == ({}, {})
    assert (stored()[0].payload, stored()[0].headers) == ({}, {})


@pytest.mark.parametrize("id", ["abc", 42, UUID(int=7)])
def test_aggregate_ids_are_kept_as_text(box: Outbox, id: object) -> None:
    assert emit(id).aggregate_id == stored()[0].aggregate_id == str(id)


def test_attempts_default_to_the_setting(configure: Configure) -> None:
    configure(max_attempts=9)
    assert (emit(1).max_attempts, emit(2, max_attempts=1).max_attempts) == (9, 1)


def test_context_gives_correlation_and_tenant(box: Outbox) -> None:
    with outbox.context(correlation_id="c1", tenant_id="t1"):
        assert told(emit(1)) == ("c1", "t1")
        with outbox.context(tenant_id="t2"):
            assert told(emit(2)) == ("c1", "t2")
            assert told(emit(3, correlation_id="own", tenant_id="mine")) == ("own", "mine")
        assert [told(event) for event in outbox.emit_many(users(4))] == [("c1", "t1")]
    assert told(emit(5)) == (None, None)


def told(event: OutboxEvent) -> tuple[str | None, str | None]:
    return event.correlation_id, event.tenant_id


# One statement, through the caller's connection


def test_emit_is_one_statement(box: Outbox) -> None:
    with statements(box.database) as seen, box.database.atomic():
        emit()
    assert verbs(seen) == ["INSERT"]


def test_n_emits_are_n_statements_without_savepoints(box: Outbox) -> None:
    with statements(box.database) as seen, box.database.atomic():
        for number in range(10):
            emit(number)
    assert verbs(seen) == ["INSERT"] * 10


def test_events_and_the_callers_rows_are_committed_together(box: Outbox) -> None:
    with box.database.atomic():
        Note.create(text="kept")
        emit(1)
        assert elsewhere(box.database, lambda: (notes(), stored_ids())) == ([], [])
    assert (notes(), stored_ids()) == (["kept"], ["1"])


class Watched(peewee.PostgresqlDatabase):
    """What an application may use to see, or to change, how statements are run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[str] = []

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        self.seen.append(sql)
        return super().execute_sql(sql, params)  # type: ignore[no-untyped-call]


def test_an_application_that_runs_statements_in_its_own_way_runs_ours_too(postgres_url: str) -> None:
    with own_database(postgres_url, Watched) as box:
        watched: Any = box.database
        watched.seen.clear()
        with watched.atomic():
            box.emit("User", 1, "user.created")
            box.emit("User", 2, "user.created")
        assert verbs(watched.seen) == ["INSERT"] * 2


@on_postgres
def test_peewees_log_has_every_emit(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    emit(1)
    with caplog.at_level(logging.DEBUG, logger="peewee"):
        emit(2)
    assert sum("INSERT INTO outbox_event" in message for message in caplog.messages) == 1


def test_on_the_wire_an_emit_is_one_round_trip_that_nobody_watches(postgres_url: str, tmp_path: Path) -> None:
    with opened(postgres_url) as box:
        box.create_tables()
        with box.database.atomic():
            for number in range(10):
                box.emit("User", number, "user.created")
            with wire(box.database, tmp_path / "trace") as sent:
                box.emit("User", 10, "user.created")
                box.emit("User", 11, "user.created")
    assert sent.count("Sync") == sent.count("Execute") == sent.count("Bind") == 2
    assert sent.count("Parse") == 0  # it is prepared


@contextlib.contextmanager
def wire(database: peewee.Database, file: Path) -> Iterator[list[str]]:
    """The kinds of messages that libpq sends in the block."""
    sent: list[str] = []
    connection: Any = database.connection()
    with file.open("wb") as trace:
        connection.pgconn.trace(trace.fileno())
        yield sent
        connection.pgconn.untrace()
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    sent += [line[3] for line in lines if line[1] == "F"]


@pytest.mark.parametrize("options", [{}, {"cursor_factory": psycopg.ClientCursor}, {"prepare_threshold": None}])
def test_it_works_however_the_application_has_its_cursors(postgres_url: str, options: dict[str, Any]) -> None:
    with own_database(postgres_url, peewee.PostgresqlDatabase, **options) as box:
        for number in range(8):
            with box.database.atomic():
                event = box.emit("User", number, "user.created", {"text": TRICKY}, headers={"h": TRICKY})
        later = box.emit("User", 8, "user.created", deliver_after=timedelta(hours=1))
        many = box.emit_many([("User", number, "user.created", {"text": TRICKY}) for number in range(9, 12)])
        rows = {row.id: row for row in OutboxEvent.select().execute(box.database)}
        assert len(rows) == 12
        for each in (event, later, *many):
            assert contents(each) == contents(rows[each.id])


def test_an_emit_that_fails_raises_what_peewee_would_and_the_next_one_works(postgres_url: str) -> None:
    with two_boxes(postgres_url) as (box, rival):
        box.emit("User", 1, "user.created")
        with box.database.atomic() as transaction:
            box.database.execute_sql("SET LOCAL lock_timeout = '10ms'")
            with rival.database.atomic():
                rival.emit("User", 2, "user.created")
                with pytest.raises(peewee.OperationalError, match="lock timeout"):
                    box.emit("User", 2, "user.created")
            transaction.rollback()
            box.emit("User", 3, "user.created")
        assert {event.aggregate_id for event in OutboxEvent.select().execute(box.database)} == {"1", "2", "3"}


class Counted(psycopg.Cursor[Any]):
    """A cursor that is counted."""

    made = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        Counted.made += 1
        super().__init__(*args, **options)


def test_emits_on_one_connection_share_a_cursor(postgres_url: str) -> None:
    with own_database(postgres_url, peewee.PostgresqlDatabase, cursor_factory=Counted) as box, box.database.atomic():
        box.emit("User", 0, "user.created")
        before = Counted.made
        for number in range(1, 10):
            box.emit("User", number, "user.created")
        assert Counted.made == before


def test_a_connection_that_somebody_else_has_by_now_is_left_alone(postgres_url: str) -> None:
    with opened(postgres_url) as box, ThreadPoolExecutor(1) as somebody:
        database: Any = box.database
        box.create_tables()
        database.connect(reuse_if_open=True)
        box.emit("User", 1, "user.created")
        first = database.connection()
        database.close()  # to the pool
        assert somebody.submit(database.connection).result() is first
        with database.atomic() as transaction:
            assert database.connection() is not first
            box.emit("User", 2, "user.created")
            box.emit("User", 3, "user.created")
            transaction.rollback()
        assert [event.aggregate_id for event in OutboxEvent.select().execute(database)] == ["1"]
        somebody.submit(database.close).result()


def test_a_lost_connection_is_peewees_error_and_a_new_one_is_used_as_the_first(postgres_url: str) -> None:
    with two_boxes(postgres_url) as (box, rival):
        box.emit("User", 1, "user.created")
        connection: Any = box.database.connection()
        end_session(rival.database, connection.info.backend_pid)
        with pytest.raises(peewee.OperationalError):
            box.emit("User", 2, "user.created")
        box.dialect.discard_connection()
        box.emit("User", 3, "user.created")
        box.emit("User", 4, "user.created")
        assert box.database.connection() is not connection


def test_threads_that_share_a_connection_get_each_its_own_answer(postgres_url: str) -> None:
    with own_database(postgres_url, peewee.PostgresqlDatabase, thread_safe=False) as box, ThreadPoolExecutor(8) as pool:
        box.database.connect(reuse_if_open=True)
        events = list(pool.map(lambda number: box.emit("User", number, "user.created"), range(200)))
        rows = {row.aggregate_id: row.seq for row in OutboxEvent.select().execute(box.database)}
        assert {event.aggregate_id: event.seq for event in events} == rows


@contextlib.contextmanager
def own_database(url: str, kind: type[peewee.PostgresqlDatabase], **options: Any) -> Iterator[Outbox]:
    """The outbox of an application that has opened its database itself."""
    database = kind(url, prefer_psycopg3=True, **options)
    box = Outbox(Settings(dispatch="off"), database=database)
    box.create_tables()
    try:
        yield box
    finally:
        database.close()


# Keys and duplicates


def test_the_default_key_is_type_and_id(box: Outbox) -> None:
    assert emit(17).idempotency_key == stored()[0].idempotency_key == "User:17"


def test_the_same_key_serves_different_event_types(box: Outbox) -> None:
    outbox.emit("User", 1, "user.created")
    outbox.emit("User", 1, "user.deleted")
    assert len(stored()) == 2


def test_unique_makes_an_event_that_may_repeat(box: Outbox) -> None:
    events = [emit(1, idempotency_key=outbox.UNIQUE) for _ in range(3)]
    assert [event.idempotency_key for event in events] == [str(event.id) for event in events]
    assert len(stored()) == 3


def test_unique_is_readable() -> None:
    assert repr(outbox.UNIQUE) == "outbox.UNIQUE"


def test_a_duplicate_names_the_event_that_exists_and_the_way_out(box: Outbox) -> None:
    first = emit(1, idempotency_key="k")
    with pytest.raises(outbox.DuplicateEvent) as raised:
        emit(2, idempotency_key="k")
    assert isinstance(raised.value, peewee.IntegrityError)
    assert isinstance(raised.value, outbox.OutboxError)
    assert (raised.value.event_type, raised.value.idempotency_key) == ("user.created", "k")
    assert raised.value.existing_id == first.id
    for part in ("'user.created'", "'k'", str(first.id), "outbox.UNIQUE"):
        assert part in str(raised.value)


def test_after_a_duplicate_the_transaction_goes_on(box: Outbox) -> None:
    emit(1)
    with box.database.atomic():
        Note.create(text="before")
        with pytest.raises(outbox.DuplicateEvent):
            emit(1)
        Note.create(text="after")
        emit(2)
    assert (notes(), stored_ids()) == (["before", "after"], ["1", "2"])


def test_a_duplicate_within_the_same_transaction_is_found(box: Outbox) -> None:
    with box.database.atomic():
        first = emit(1)
        with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
            emit(1)
    assert stored_ids() == ["1"]


def test_a_key_is_taken_for_as_long_as_the_row_is_kept(box: Outbox) -> None:
    emit(1)
    outbox.process_pending_events()
    with pytest.raises(outbox.DuplicateEvent):
        emit(1)
    assert outbox.cleanup_delivered_events(0) == {"deleted": 1, "remaining": 0}
    emit(1)


def test_a_duplicate_can_be_answered_with_the_event_that_exists(box: Outbox) -> None:
    first = outbox.emit("User", 1, "user.created", {"first": True})
    with statements(box.database) as seen:
        again = outbox.emit("User", 1, "user.created", {"first": False}, on_duplicate="ignore")
    assert contents(again) == contents(first)
    assert verbs(seen) == ["INSERT", "SELECT"]
    assert len(stored()) == 1


def test_ignoring_duplicates_still_emits_what_is_new(box: Outbox) -> None:
    assert emit(1, on_duplicate="ignore").id == stored()[0].id


@pytest.mark.parametrize("on_duplicate", ["raise", "ignore"])
def test_a_duplicate_that_vanishes_in_between_is_inserted_again(box: Outbox, on_duplicate: str) -> None:
    first = emit(1)
    with after_the_first_statement(box.database, lambda: OutboxEvent.delete().execute()):
        second = emit(1, on_duplicate=on_duplicate)
    assert second.id != first.id
    assert [event.id for event in stored()] == [second.id]


@contextlib.contextmanager
def after_the_first_statement(database: peewee.Database, intrude: Callable[[], object]) -> Iterator[None]:
    """Call `intrude` in another connection between the first and the second statement of the block."""

    def hook(query: object) -> None:
        database.query_hooks.remove(hook)
        elsewhere(database, intrude)

    database.query_hooks.append(hook)
    yield
    assert hook not in database.query_hooks


def test_two_outboxes_find_duplicates_each_in_its_own_database(box: Outbox, sqlite_url: str) -> None:
    first = emit(1)
    with opened(f"{sqlite_url}.other") as other:
        other.create_tables()
        others = other.emit("User", 1, "user.created")
        for each, event in ((box, first), (other, others)):
            assert each.emit("User", 1, "user.created", on_duplicate="ignore").id == event.id
            with pytest.raises(outbox.DuplicateEvent, match=str(event.id)):
                each.emit("User", 1, "user.created")


def test_of_twenty_threads_with_the_same_key_exactly_one_wins(box: Outbox) -> None:
    results = at_once(box.database, [lambda: emit(1)] * 20)
    (winner,) = stored()
    assert [result.id for result in results if isinstance(result, OutboxEvent)] == [winner.id]
    losers = [result for result in results if isinstance(result, outbox.DuplicateEvent)]
    assert [loser.existing_id for loser in losers] == [winner.id] * 19


def test_of_twenty_transactions_with_the_same_key_all_commit_and_one_event_stays(box: Outbox) -> None:
    def place(number: int) -> UUID:
        with box.database.atomic():
            Note.create(text=str(number))
            event = emit(1, on_duplicate="ignore")
        return event.id

    results = at_once(box.database, [lambda number=number: place(number) for number in range(20)])  # type: ignore[misc]
    assert results == [stored()[0].id] * 20
    assert sorted(notes(), key=int) == [str(number) for number in range(20)]


def test_a_rival_that_rolls_back_leaves_the_key_free(postgres_url: str) -> None:
    with two_boxes(postgres_url) as (box, rival):
        with rival.database.atomic() as transaction:
            rival.emit("User", 1, "user.created")
            transaction.rollback()
            event = box.emit("User", 1, "user.created")
        assert box.emit("User", 1, "user.created", on_duplicate="ignore").id == event.id


def test_under_repeatable_read_a_concurrent_duplicate_is_a_serialization_error(postgres_url: str) -> None:
    with two_boxes(postgres_url) as (box, rival):
        database: Any = box.database  # Peewee's stubs know only SQLite's atomic
        with pytest.raises(peewee.OperationalError) as raised, database.atomic("REPEATABLE READ"):  # noqa: PT012
            box.database.execute_sql("SELECT 1")
            rival.emit("User", 1, "user.created")
            box.emit("User", 1, "user.created")
    assert isinstance(vars(raised.value)["orig"], psycopg.errors.SerializationFailure)


@contextlib.contextmanager
def opened(url: str) -> Iterator[Outbox]:
    """An outbox beside the package's own."""
    database: Any = open_database(url)
    try:
        yield Outbox(Settings(dispatch="off"), database=database)
    finally:
        database.close_all()


@contextlib.contextmanager
def two_boxes(url: str) -> Iterator[tuple[Outbox, Outbox]]:
    """The outboxes of two processes on the same database."""
    with opened(url) as first, opened(url) as second:
        first.create_tables()
        yield first, second


# Refused before any SQL

USER: dict[str, Any] = {"aggregate_type": "User", "aggregate_id": 1, "event_type": "user.created"}
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"aggregate_type": "x" * 101}, ["aggregate_type", "101", "100"]),
    ({"aggregate_type": ""}, ["aggregate_type", "empty"]),
    ({"aggregate_type": None}, ["aggregate_type", "NoneType"]),
    ({"aggregate_type": "a\x00"}, ["aggregate_type", "NUL"]),
    ({"aggregate_type": "\ud800"}, ["aggregate_type", "lone surrogate"]),
    ({"aggregate_id": "x" * 101}, ["aggregate_id", "101", "100"]),
    ({"aggregate_id": ""}, ["aggregate_id", "empty"]),
    ({"aggregate_id": None}, ["aggregate_id", "NoneType"]),
    ({"aggregate_id": True}, ["aggregate_id", "bool"]),
    ({"aggregate_id": 1.5}, ["aggregate_id", "float"]),
    ({"event_type": "x" * 101}, ["event_type", "101", "100"]),
    ({"event_type": "\udfff"}, ["event_type", "lone surrogate"]),
    ({"idempotency_key": "x" * 256}, ["idempotency_key", "256", "255"]),
    ({"idempotency_key": ""}, ["idempotency_key", "empty"]),
    ({"idempotency_key": 7}, ["idempotency_key", "int"]),
    ({"correlation_id": "x" * 256}, ["correlation_id", "256", "255"]),
    ({"tenant_id": "x" * 256}, ["tenant_id", "256", "255"]),
    ({"tenant_id": "a\x00"}, ["tenant_id", "NUL"]),
    ({"max_attempts": 0}, ["max_attempts", "1", "1000", "0"]),
    ({"max_attempts": 1001}, ["max_attempts", "1000", "1001"]),
    ({"max_attempts": True}, ["max_attempts", "True"]),
    ({"max_attempts": "5"}, ["max_attempts", "'5'"]),
    ({"payload": [1]}, ["payload", "JSON object", "list"]),
    ({"payload": "text"}, ["payload", "JSON object", "str"]),
    ({"payload": {"n": float("nan")}}, ["payload"]),
    ({"headers": {"n": float("inf")}}, ["headers"]),
    ({"headers": ["x"]}, ["headers", "JSON object", "list"]),
    ({"payload": {"t": "\x00"}}, ["payload", "NUL"]),
    ({"payload": {"t": "\ud800"}}, ["payload", "lone surrogate"]),
    ({"payload": {"t": datetime(2026, 1, 1)}}, ["payload", "timezone"]),  # noqa: DTZ001
    ({"payload": {"t": "x" * 256 * 1024}}, ["payload", str(256 * 1024)]),
    ({"deliver_after": datetime(2026, 1, 1)}, ["deliver_after", "timezone"]),  # noqa: DTZ001
    ({"deliver_after": date(2026, 1, 1)}, ["deliver_after", "date"]),
    ({"deliver_after": 60}, ["deliver_after", "int"]),
    ({"deliver_after": timedelta(microseconds=-1)}, ["deliver_after", "zero"]),
    ({"deliver_after": timedelta(days=3650, microseconds=1)}, ["deliver_after", "3650"]),
    ({"deliver_after": datetime.max.replace(tzinfo=UTC)}, ["deliver_after", "3650"]),
    ({"deliver_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, ["deliver_after", "3650"]),
    ({"deliver_after": datetime.min.replace(tzinfo=UTC)}, ["deliver_after", "1970", "0001-01-01"]),
    ({"deliver_after": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, ["deliver_after", "1970"]),
    ({"deliver_after": EARLIEST - timedelta(microseconds=1)}, ["deliver_after", "1970"]),
    ({"on_duplicate": "merge"}, ["on_duplicate", '"raise"', '"ignore"', "'merge'"]),
]


def test_what_cant_be_stored_is_refused_before_any_sql(box: Outbox) -> None:
    for wrong, named in BAD:
        with statements(box.database) as seen, pytest.raises(outbox.InvalidEvent) as raised:
            outbox.emit(**USER | wrong)
        assert seen == [], wrong
        assert all(part in str(raised.value) for part in named), str(raised.value)


def test_after_a_refusal_the_transaction_goes_on(box: Outbox) -> None:
    with box.database.atomic():
        with pytest.raises(outbox.InvalidEvent):
            emit("x" * 101)
        Note.create(text="goes on")
    assert (notes(), stored()) == (["goes on"], [])


@pytest.mark.parametrize("letter", ["x", "é", "🐙"])
def test_the_longest_names_fit_on_every_database(box: Outbox, letter: str) -> None:
    name, long = letter * 100, letter * 255
    event = outbox.emit(name, name, name, idempotency_key=long, correlation_id=long, tenant_id=long, max_attempts=1000)
    (row,) = stored()
    assert contents(event) == contents(row)
    assert (row.aggregate_type, row.idempotency_key) == (name, long)


def test_the_longest_names_have_a_default_key_that_fits(box: Outbox) -> None:
    assert len(outbox.emit("x" * 100, "y" * 100, "z" * 100).idempotency_key) == 201


def test_the_longest_delay_is_accepted(box: Outbox) -> None:
    event = emit(deliver_after=timedelta(days=3650))
    assert event.next_attempt_at - event.created_at == timedelta(days=3650)


def test_the_earliest_moment_is_accepted_and_claimed_in_every_time_zone(box: Outbox) -> None:
    for number, zone in enumerate(("Etc/GMT+12", "Pacific/Kiritimati")):
        event = emit(number, deliver_after=EARLIEST)
        assert event.next_attempt_at == EARLIEST
        with box.database.connection_context():
            if box.dialect.name == "postgres":
                box.database.execute_sql("SELECT set_config('TimeZone', %s, false)", (zone,))
            assert ids(claimed(box, 10).events) == [event.id]


# emit_many


def test_emit_many_takes_tuples_dicts_and_new_events(box: Outbox) -> None:
    events = outbox.emit_many(
        [
            ("User", 1, "user.created", {"n": 1}),
            {"aggregate_type": "User", "aggregate_id": 2, "event_type": "user.created", "tenant_id": "t"},
            outbox.NewEvent("User", 3, "user.created", deliver_after=timedelta(hours=1)),
        ]
    )
    assert list(map(contents, events)) == list(map(contents, stored()))
    assert [event.payload for event in events] == [{"n": 1}, {}, {}]
    assert (events[1].tenant_id, events[2].next_attempt_at - events[2].created_at) == ("t", timedelta(hours=1))


TRICKY = """ "quoted", 'too', \\ and \\\\n, {braces}, NULL, tab\t, two
lines, %s %% $1, é, 🐙, \x01"""


def test_emit_many_keeps_any_text_as_it_is(box: Outbox) -> None:
    names = ["NULL", "null", '"', "\\", '\\"', "{}", ",", "a,b", " ", TRICKY]
    events = outbox.emit_many(
        {
            "aggregate_type": name,
            "aggregate_id": name,
            "event_type": name,
            "payload": {name: [name]},
            "idempotency_key": name,
            "headers": {"h": name} if number % 2 else None,
            "correlation_id": name if number % 3 else None,
            "tenant_id": name if number % 4 else None,
            "max_attempts": number + 1,
            "deliver_after": [None, timedelta(hours=number), datetime(2031, 1, number + 1, tzinfo=UTC)][number % 3],
        }
        for number, name in enumerate(names)
    )
    assert list(map(contents, events)) == list(map(contents, stored()))
    assert [event.payload for event in stored()] == [{name: [name]} for name in names]
    assert [event.tenant_id for event in stored()][:2] == [None, "null"]


def test_emit_many_keeps_what_all_events_share(box: Outbox) -> None:
    options = {"idempotency_key": outbox.UNIQUE, "correlation_id": TRICKY, "tenant_id": '"', "deliver_after": A_MOMENT}
    user = {"aggregate_type": TRICKY, "aggregate_id": "\\", "event_type": ",", "payload": {"t": TRICKY}, **options}
    events = outbox.emit_many([user] * 3)
    assert list(map(contents, events)) == list(map(contents, stored()))
    assert {event.next_attempt_at - event.created_at for event in events} == {A_MOMENT}


def test_emit_many_of_nothing_does_nothing(box: Outbox) -> None:
    with statements(box.database) as seen:
        assert outbox.emit_many([]) == []
    assert seen == []


def test_emit_many_takes_a_generator(box: Outbox) -> None:
    assert len(outbox.emit_many(("User", number, "user.created") for number in range(3))) == 3


def test_emit_many_answers_and_numbers_in_the_callers_order(box: Outbox) -> None:
    numbers = [*range(1200, 0, -1), *range(1201, 2402)]
    events = outbox.emit_many(users(*numbers))
    assert [event.aggregate_id for event in events] == [str(number) for number in numbers]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert [event.seq for event in stored()] == [event.seq for event in events]


def test_emit_many_is_a_round_trip_per_thousand_on_postgres(postgres_url: str) -> None:
    with two_boxes(postgres_url) as (box, _):
        with statements(box.database) as seen, box.database.atomic():
            box.emit_many(users(*range(2001)))
        assert verbs(seen) == ["SAVEPOINT", "SELECT", *["WITH"] * 3, "RELEASE"]


def test_emit_many_opens_one_savepoint_in_a_transaction(box: Outbox) -> None:
    with statements(box.database) as seen, box.database.atomic():
        outbox.emit_many(users(1, 2, 3))
    first, *inserts, last = verbs(seen)
    assert (first, last) == ("SAVEPOINT", "RELEASE")
    assert not {"SAVEPOINT", "RELEASE"} & set(inserts)


def test_emit_many_outside_a_transaction_is_all_or_nothing(box: Outbox) -> None:
    emit(2)
    with pytest.raises(outbox.DuplicateEvent):
        outbox.emit_many(users(1, 2, 3))
    assert stored_ids() == ["2"]


def test_emit_many_inside_a_transaction_takes_back_only_its_own(box: Outbox) -> None:
    first = emit(2)
    with box.database.atomic():
        Note.create(text="before")
        emit(10)
        with pytest.raises(outbox.DuplicateEvent, match=str(first.id)):
            outbox.emit_many(users(1, 2, 3))
        Note.create(text="after")
        emit(11)
    assert (notes(), stored_ids()) == (["before", "after"], ["2", "10", "11"])


def test_emit_many_refuses_the_same_key_twice_in_one_call(box: Outbox) -> None:
    with pytest.raises(outbox.DuplicateEvent, match="in this same call") as raised:
        outbox.emit_many(users(1, 2, 1))
    assert raised.value.existing_id is None
    assert "outbox.UNIQUE" in str(raised.value)
    assert stored() == []


def test_emit_many_can_answer_with_what_exists(box: Outbox) -> None:
    first = emit(2)
    events = outbox.emit_many(users(3, 2, 1, 3), on_duplicate="ignore")
    assert [event.aggregate_id for event in events] == ["3", "2", "1", "3"]
    assert events[1].id == first.id
    assert events[0].id == events[3].id
    assert stored_ids() == ["2", "3", "1"]


def test_of_two_with_the_same_key_in_one_call_the_first_stays(box: Outbox) -> None:
    items = [("User", 1, "user.created", {"first": first}) for first in (True, False)]
    assert [event.payload for event in outbox.emit_many(items, on_duplicate="ignore")] == [{"first": True}] * 2


BAD_ITEMS: list[tuple[Any, str]] = [
    (("User", 1), "event_type"),
    (("User", 1, "t", *[None] * 11, "more"), "emit_many takes"),
    ({"aggregate_type": "User"}, "aggregate_id"),
    ({"aggregate_typ": "User"}, "aggregate_typ"),
    (7, "emit_many takes"),
    (("User", 1, "x" * 101), "event 1: event_type is 101 characters long; the limit is 100"),
    (("User", 1, "t", {"n": float("nan")}), "event 1: payload"),
]


def test_emit_many_refuses_a_bad_item_before_any_sql(box: Outbox) -> None:
    for item, named in BAD_ITEMS:
        with statements(box.database) as seen, pytest.raises(outbox.InvalidEvent, match=named):
            outbox.emit_many([*users(1), item])
        assert seen == []


def test_callers_with_the_same_keys_in_opposite_order_dont_deadlock(box: Outbox) -> None:
    numbers = list(range(100, 200))
    results = at_once(box.database, [in_order(numbers), in_order(numbers[::-1])] * 3)
    assert [len(result) for result in results if isinstance(result, list)] == [100] * 6
    assert sorted(map(int, stored_ids())) == numbers


@on_postgres
def test_callers_that_have_met_in_the_middle_dont_deadlock(box: Outbox, postgres_url: str) -> None:
    numbers = list(range(100, 200))
    with opened(postgres_url) as rival, ThreadPoolExecutor(1) as thread:
        with rival.database.atomic() as transaction:
            rival.emit("User", 150, "user.created")
            both = thread.submit(at_once, box.database, [in_order(numbers), in_order(numbers[::-1])])
            # Each has inserted what comes before the rival's key, and waits.
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            assert wait_until(lambda: rival.database.execute_sql(waiting).fetchone() == (2,))
            transaction.rollback()
        results = both.result(PATIENCE_SECONDS)
    assert [len(result) for result in results if isinstance(result, list)] == [100] * 2


def in_order(numbers: list[int]) -> Callable[[], list[OutboxEvent]]:
    return lambda: outbox.emit_many(users(*numbers), on_duplicate="ignore")


class Kind(str, Enum):  # noqa: UP042  (what an application may have)
    USER = "user"


def test_a_name_from_an_enum_is_its_text_also_in_the_key(box: Outbox) -> None:
    event = box.emit(Kind.USER, 1, "user.created")
    assert (event.aggregate_type, event.idempotency_key) == ("user", "user:1")


def test_a_pattern_is_no_event_type(box: Outbox) -> None:
    with pytest.raises(outbox.InvalidEvent, match=r"event_type must not contain '\*'"):
        box.emit("User", 1, "user.*")


class TestTheSubject:
    """Whom an event is about: `outbox erase --subject` finds it by that."""

    @pytest.mark.parametrize("more", [{}, {"ordered": True}, {"deliver_after": timedelta(hours=1)}])
    def test_it_is_stored_whatever_else_is_given(self, box: Outbox, more: dict[str, Any]) -> None:
        about_one = emit(7, subject="user:7", tenant_id="acme", **more)
        about_none = emit(8, tenant_id="acme", **more)
        first, second = stored()
        assert (first.subject, first.payload, first.tenant_id, first.kind) == ("user:7", {"n": 1}, "acme", "event")
        assert (about_one.subject, about_one.next_attempt_at) == (first.subject, first.next_attempt_at)
        assert (second.subject, second.order_state, about_none.subject) == (None, first.order_state, None)

    def test_many_events_have_one_each(self, box: Outbox) -> None:
        given = ["user:7", None, "user:8"]
        outbox.emit_many(outbox.NewEvent("User", n, "user.seen", subject=each) for n, each in enumerate(given))
        assert [(event.aggregate_id, event.subject) for event in stored()] == list(zip("012", given, strict=True))

    def test_it_is_replaced_with_the_rest(self, box: Outbox) -> None:
        emit(subject="user:7")
        emit(subject="user:8", on_duplicate="replace")
        assert [event.subject for event in stored()] == ["user:8"]

    @pytest.mark.parametrize("subject", ["", "x" * 256, 7])
    def test_it_is_checked(self, box: Outbox, subject: Any) -> None:
        with pytest.raises(outbox.InvalidEvent, match="subject"):
            emit(subject=subject)
