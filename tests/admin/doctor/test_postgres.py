"""The doctor's checks of what keeps PostgreSQL's vacuum from removing dead rows."""

import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import peewee
import psycopg
import pytest
from psycopg import pq

from outbox.admin.doctor.check import NOTE, OK, PROBLEM, WARNING
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.admin.doctor.findings import advice_of, commands_in, finding_of, findings_of
from tests.support.servers import PostgresServer
from tests.support.table import becomes_true, emit, on_postgres


def execute(box: Outbox, statement: str) -> Any:
    with box.dialect.connection():
        return box.database.execute_sql(statement)


def pid_of(connection: psycopg.Connection[Any]) -> int:
    return connection.info.backend_pid


# Transactions


@on_postgres
def test_without_open_transactions_all_is_well(box: Outbox) -> None:
    assert finding_of(box, "transactions").level == OK


@on_postgres
def test_an_open_snapshot_is_reported_with_its_process_and_without_its_query(box: Outbox, url: str) -> None:
    with closing(psycopg.connect(url, application_name="nightly-report")) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 'a secret in a query'")
        assert finding_of(box, "transactions").level == OK  # not yet for long
        found = finding_of(box, "transactions", open_seconds=0)
        assert found.level == WARNING
        assert f"process {pid_of(connection)} (nightly-report, idle in transaction)" in found.what
        assert "vacuum can't remove rows" in found.what
        assert "a secret in a query" not in repr(found)
        assert finding_of(box, "transactions", open_seconds=0, open_too_long_seconds=0).level == PROBLEM
        execute(box, commands_in(found)[0])
        becomes_true(lambda: finding_of(box, "transactions", open_seconds=0).level == OK)


@on_postgres
def test_a_transaction_without_a_snapshot_may_still_hold_locks(box: Outbox, url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE note IN ACCESS SHARE MODE")
        found = finding_of(box, "transactions", open_seconds=0)
        assert (found.level, "its locks stay held" in found.what) == (WARNING, True)


@on_postgres
def test_a_transaction_in_another_database_is_fine(box: Outbox, url: str) -> None:
    with psycopg.connect(f"{url.rpartition('/')[0]}/postgres") as connection:
        connection.execute("SELECT txid_current()")
        assert finding_of(box, "transactions", open_seconds=0).level == OK


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(max_prepared_transactions="2") as server:
        yield server


@pytest.fixture
def own_box(own_server: PostgresServer) -> Iterator[Outbox]:
    box = Outbox(Settings(dispatch="off"), database=open_database(own_server.create_database("own")))
    box.create_tables()
    yield box
    box.database.close_all()  # type: ignore[attr-defined]


def test_a_prepared_transaction_that_was_forgotten_is_a_problem(own_box: Outbox) -> None:
    with own_box.dialect.connection():
        own_box.database.execute_sql("BEGIN")
        own_box.database.execute_sql("CREATE TABLE forgotten (id integer)")
        own_box.database.execute_sql("PREPARE TRANSACTION 'transfer-7'")
    assert finding_of(own_box, "transactions").level == OK
    found = finding_of(own_box, "transactions", open_seconds=0)
    assert (found.level, "'transfer-7'" in found.what) == (PROBLEM, True)
    execute(own_box, next(each for each in commands_in(found) if each.startswith("ROLLBACK")))
    assert finding_of(own_box, "transactions", open_seconds=0).level == OK


@contextmanager
def standby(url: str, slot: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Connect as a standby with a long query, which reports that it needs all rows since the first transaction."""
    connection = psycopg.connect(url, autocommit=True, replication="true", application_name="standby")
    with closing(connection):
        raw = connection.pgconn
        where = f"SLOT {slot} " if slot else ""
        (position,) = (connection.execute("IDENTIFY_SYSTEM").fetchone() or ())[2:3]
        raw.send_query(f"START_REPLICATION {where}PHYSICAL {position.decode()}".encode())
        result = raw.get_result()
        assert result is not None
        assert result.status == pq.ExecStatus.COPY_BOTH
        oldest = 3  # the first transaction there is
        raw.put_copy_data(b"h" + struct.pack(">qIIII", int(time.time() * 1e6), oldest, 0, 0, 0))
        raw.flush()
        yield connection


def test_a_slot_whose_standby_lags_is_a_warning_whether_or_not_it_is_in_use(own_box: Outbox, own_server: Any) -> None:
    execute(own_box, "SELECT pg_create_physical_replication_slot('lagging', true)")
    assert finding_of(own_box, "transactions", snapshot_age=1).level == OK
    with standby(own_server.url, "lagging"):
        becomes_true(lambda: finding_of(own_box, "transactions", snapshot_age=1).level == WARNING)
        assert "'lagging', which is in use" in finding_of(own_box, "transactions", snapshot_age=1).what
        assert finding_of(own_box, "transactions").level == OK  # not many transactions have been since
    becomes_true(lambda: "is not in use" in finding_of(own_box, "transactions", snapshot_age=1).what)
    command = commands_in(finding_of(own_box, "transactions", snapshot_age=1))[0]
    becomes_true(lambda: can_be_run(own_box, command))
    assert finding_of(own_box, "transactions", snapshot_age=1).level == OK


def can_be_run(box: Outbox, command: str) -> bool:
    try:
        execute(box, command)
    except peewee.OperationalError:  # it is still being used
        return False
    return True


def test_a_long_query_on_a_standby_without_a_slot_is_a_warning(own_box: Outbox, own_server: Any) -> None:
    with standby(own_server.url, None):
        becomes_true(lambda: finding_of(own_box, "transactions", snapshot_age=1).level == WARNING)
        found = finding_of(own_box, "transactions", snapshot_age=1)
        assert "A query on the standby standby" in found.what
        assert "hot_standby_feedback" in advice_of(found)
        assert finding_of(own_box, "transactions").level == OK
    becomes_true(lambda: finding_of(own_box, "transactions", snapshot_age=1).level == OK)


def test_transactions_of_other_roles_are_not_visible_without_a_grant(own_box: Outbox, own_server: Any) -> None:
    database = own_box.database.database
    execute(own_box, "CREATE ROLE limited LOGIN PASSWORD 'limited-word'")
    execute(own_box, "GRANT USAGE ON SCHEMA public TO limited")
    execute(own_box, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited")
    address = f"postgresql://limited:limited-word@127.0.0.1:{own_server.port}/{database}"
    limited = Outbox(Settings(dispatch="off"), database=open_database(address))
    with psycopg.connect(f"{own_server.url.rpartition('/')[0]}/{database}") as other:
        other.execute("SELECT txid_current()")
        found = findings_of(limited, "transactions", open_seconds=0)
        assert [each.level for each in found] == [NOTE, OK]
        assert "can't see their transactions" in found[0].what
        execute(own_box, commands_in(found[0])[0])
        limited.database.close_all()  # type: ignore[attr-defined]
        assert finding_of(limited, "transactions", open_seconds=0).level == WARNING
    limited.database.close_all()  # type: ignore[attr-defined]
    execute(own_box, "DROP OWNED BY limited")
    execute(own_box, "DROP ROLE limited")


# Vacuum


@on_postgres
def test_a_table_with_autovacuum_is_fine(box: Outbox) -> None:
    assert finding_of(box, "vacuum").level == OK


@on_postgres
def test_autovacuum_switched_off_for_the_table_is_a_problem_and_the_advice_fixes_it(box: Outbox) -> None:
    execute(box, "ALTER TABLE outbox_event SET (autovacuum_enabled = off)")
    found = finding_of(box, "vacuum")
    assert (found.level, "is off for outbox_event" in found.what) == (PROBLEM, True)
    execute(box, commands_in(found)[0])
    assert finding_of(box, "vacuum").level == OK


@pytest.mark.parametrize("switch", ["autovacuum", "track_counts"])
def test_autovacuum_switched_off_for_all_is_a_problem_and_the_advice_fixes_it(own_box: Outbox, switch: str) -> None:
    execute(own_box, f"ALTER SYSTEM SET {switch} = off")
    execute(own_box, "SELECT pg_reload_conf()")
    becomes_true(lambda: finding_of(own_box, "vacuum").level == PROBLEM)
    found = finding_of(own_box, "vacuum")
    assert f"{switch} is off" in found.what
    for command in commands_in(found):
        execute(own_box, command)
    becomes_true(lambda: finding_of(own_box, "vacuum").level == OK)


@on_postgres
@pytest.mark.parametrize("change_it", ["SET (fillfactor = 90)", "RESET (fillfactor)"])
def test_another_fillfactor_is_a_warning_and_the_advice_fixes_it(box: Outbox, change_it: str) -> None:
    execute(box, f"ALTER TABLE outbox_event {change_it}")
    found = finding_of(box, "vacuum")
    assert (found.level, "fillfactor of outbox_event" in found.what) == (WARNING, True)
    execute(box, commands_in(found)[0])
    assert finding_of(box, "vacuum").level == OK


@on_postgres
@pytest.mark.usefixtures("new_tables")
def test_more_dead_rows_than_live_ones_are_a_warning_and_the_advice_fixes_it(box: Outbox) -> None:
    emit(100)
    execute(box, "DELETE FROM outbox_event WHERE seq IN (SELECT seq FROM outbox_event ORDER BY seq LIMIT 30)")
    box.database.close_all()  # type: ignore[attr-defined]  # a session reports its statistics when it ends
    becomes_true(lambda: dead_rows(box) == 30)
    assert finding_of(box, "vacuum", dead_rows=20).level == OK  # fewer than live ones
    execute(box, "DELETE FROM outbox_event WHERE seq IN (SELECT seq FROM outbox_event ORDER BY seq LIMIT 60)")
    box.database.close_all()  # type: ignore[attr-defined]
    becomes_true(lambda: finding_of(box, "vacuum", dead_rows=20).level == WARNING)
    found = finding_of(box, "vacuum", dead_rows=20)
    assert "dead rows and" in found.what
    assert finding_of(box, "vacuum").level == OK  # too few to matter
    execute(box, commands_in(found)[0])
    becomes_true(lambda: finding_of(box, "vacuum", dead_rows=20).level == OK)


def dead_rows(box: Outbox) -> int:
    return int(execute(box, "SELECT pg_stat_get_dead_tuples('outbox_event'::regclass)").fetchone()[0])
