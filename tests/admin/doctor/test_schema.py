"""The doctor's checks of tables and indexes."""

from typing import Any

import psycopg
import pytest

from outbox.admin.doctor.check import OK, PROBLEM, WARNING
from outbox.admin.doctor.run_checks import run_checks
from outbox.admin.doctor.schema import _needed_indexes, _needed_tables
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage import schema
from outbox.storage.connect import open_database
from tests.admin.doctor.findings import advice_of, commands_in, finding_of, findings_of
from tests.support.table import emit, on_postgres


def execute(box: Outbox, statement: str) -> Any:
    with box.dialect.connection():
        return box.database.execute_sql(statement)


def test_complete_tables_are_fine(box: Outbox) -> None:
    assert [finding_of(box, each).level for each in ("schema", "inbox", "indexes")] == [OK] * 3


def test_the_expected_tables_and_indexes_are_those_of_the_schema(box: Outbox) -> None:
    made = ["outbox_event", "outbox_process", "outbox_total", "outbox_minute", "outbox_audit"]
    made += ["outbox_destination", "outbox_control", "outbox_audience", "outbox_periodic", "outbox_waiting"]
    made += ["outbox_audit_batch", "outbox_attempt"]
    assert _needed_tables(box.dialect) == made
    indexes = {"idx_outbox_pending_next", "idx_outbox_failed", "idx_outbox_aggregate_id", "idx_outbox_ordering"}
    indexes |= {"idx_outbox_waiting_since", "idx_outbox_attempt_at"}
    indexes |= {"idx_outbox_subject", "idx_outbox_tenant_id", "idx_outbox_correlation_id"}
    indexes |= set() if box.dialect.name == "postgres" else {"idx_outbox_attempt_event"}
    constraints = {"unique_event_type_idempotency_key"} if box.dialect.name == "postgres" else set()
    assert set(_needed_indexes(box.dialect)) == indexes | constraints


def test_a_database_without_tables_is_a_problem_and_init_fixes_it(url: str) -> None:
    box = Outbox(Settings(dispatch="off"), database=open_database(url))
    with box.database.connection_context():
        pass  # there is a file now
    found = finding_of(box, "schema")
    assert (found.level, "outbox init" in advice_of(found)) == (PROBLEM, True)
    box.create_tables()
    assert finding_of(box, "schema").level == OK
    box.database.close_all()  # type: ignore[attr-defined]


def test_tables_of_an_older_version_are_a_problem(box: Outbox) -> None:
    before, newest = [version.number for version in schema.VERSIONS[-2:]]
    execute(box, "DELETE FROM outbox_schema WHERE version = (SELECT max(version) FROM outbox_schema)")
    found = finding_of(box, "schema")
    assert found.level == PROBLEM
    assert f"have the version {before}, but this library needs {newest}" in found.what
    assert commands_in(found) == ["outbox init"]


def test_tables_that_are_newer_than_the_library_are_a_warning(box: Outbox) -> None:
    execute(box, "INSERT INTO outbox_schema (version, what) SELECT max(version) + 1, 'later' FROM outbox_schema")
    found = finding_of(box, "schema")
    assert (found.level, "newer than this library's" in found.what) == (WARNING, True)


@pytest.mark.parametrize("table", ["outbox_event", "outbox_process", "outbox_minute"])
def test_a_table_that_is_missing_is_a_problem_and_checks_that_need_it_are_skipped(box: Outbox, table: str) -> None:
    execute(box, f"DROP TABLE {table}")
    found = finding_of(box, "schema")
    assert (found.level, table in found.what) == (PROBLEM, True)
    skipped = [each for each in run_checks(box) if "were skipped" in each.what]
    assert [(each.check, "workers" in each.what) for each in skipped] == [("schema", True)]


def test_a_column_that_is_missing_is_a_problem(box: Outbox) -> None:
    execute(box, "ALTER TABLE outbox_event DROP COLUMN progress")
    found = finding_of(box, "schema")
    assert (found.level, "outbox_event.progress" in found.what) == (PROBLEM, True)


def test_an_inbox_without_a_table_is_a_problem(box: Outbox) -> None:
    execute(box, "DROP TABLE inbox")
    assert finding_of(box, "inbox").level == PROBLEM
    assert finding_of(box, "schema").level == OK
    box.inbox.create_tables()
    assert finding_of(box, "inbox").level == OK


def test_another_table_named_inbox_is_a_problem(box: Outbox) -> None:
    execute(box, "DROP TABLE inbox")
    execute(box, "CREATE TABLE inbox (id integer)")
    found = finding_of(box, "inbox")
    assert (found.level, "does not belong to the outbox" in found.what) == (PROBLEM, True)


@pytest.mark.parametrize("name", ["idx_outbox_pending_next", "idx_outbox_failed", "idx_outbox_aggregate_id"])
def test_an_index_that_is_missing_is_a_problem_and_the_advice_brings_it_back(box: Outbox, name: str) -> None:
    execute(box, f"DROP INDEX {name}")
    found = finding_of(box, "indexes")
    assert (found.level, name in found.what) == (PROBLEM, True)
    (command,) = commands_in(found)
    execute(box, command)
    assert finding_of(box, "indexes").level == OK


@on_postgres
def test_the_unique_constraint_counts_as_an_index(box: Outbox) -> None:
    execute(box, "ALTER TABLE outbox_event DROP CONSTRAINT unique_event_type_idempotency_key")
    found = finding_of(box, "indexes")
    assert (found.level, "emit fails" in found.what) == (PROBLEM, True)
    (command,) = commands_in(found)
    execute(box, command)
    assert finding_of(box, "indexes").level == OK


@on_postgres
def test_an_index_of_ours_that_is_invalid_is_a_problem_and_the_advice_fixes_it(box: Outbox) -> None:
    execute(box, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_outbox_pending_next'::regclass")
    found = finding_of(box, "indexes")
    assert (found.level, "idx_outbox_pending_next of outbox_event is invalid" in found.what) == (PROBLEM, True)
    (command,) = commands_in(found)
    execute(box, command)
    assert finding_of(box, "indexes").level == OK


@on_postgres
def test_what_a_failed_create_index_concurrently_leaves_behind_is_a_warning(box: Outbox, url: str) -> None:
    emit(2)
    with psycopg.connect(url, autocommit=True) as connection, pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("CREATE UNIQUE INDEX CONCURRENTLY theirs ON outbox_event (event_type)")
    found = finding_of(box, "indexes")
    assert (found.level, "theirs of outbox_event is invalid" in found.what) == (WARNING, True)
    execute(box, commands_in(found)[0])
    assert finding_of(box, "indexes").level == OK


@on_postgres
@pytest.mark.parametrize(
    ("definition", "column"),
    [("(status)", "status"), ("(created_at) WHERE lease_until IS NULL", "lease_until"), ("(updated_at)", "updated_at")],
)
def test_an_index_that_prevents_hot_updates_is_a_warning(box: Outbox, definition: str, column: str) -> None:
    execute(box, f"CREATE INDEX theirs ON outbox_event {definition}")
    found = finding_of(box, "indexes")
    assert (found.level, f"contains {column}" in found.what) == (WARNING, True)
    execute(box, commands_in(found)[0])
    assert finding_of(box, "indexes").level == OK


def test_an_index_of_the_application_on_other_columns_is_fine(box: Outbox) -> None:
    execute(box, "CREATE INDEX theirs_by_status_of_tenant ON outbox_event (tenant_id, created_at)")
    assert [each.level for each in findings_of(box, "indexes")] == [OK]


def test_every_missing_index_is_reported(box: Outbox) -> None:
    for name in ("idx_outbox_pending_next", "idx_outbox_failed"):
        execute(box, f"DROP INDEX {name}")
    assert len(findings_of(box, "indexes")) == 2
