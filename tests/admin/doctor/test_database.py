"""The doctor's checks of the database: reachable, new enough, same time."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from outbox.admin.doctor import database
from outbox.admin.doctor.check import OK, PROBLEM, WARNING, Check, Finding
from outbox.admin.doctor.run_checks import run_checks
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.storage.connect import open_database
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.support.servers import PostgresServer, free_port
from tests.support.table import on_postgres


def test_a_reachable_database_is_named_with_its_version(box: Outbox) -> None:
    found = finding_of(box, "database")
    assert found.level == OK
    assert ("PostgreSQL" if box.dialect.name == "postgres" else "SQLite") in found.what


def test_an_unreachable_database_is_a_problem_and_other_checks_still_run() -> None:
    url = f"postgresql://app:hidden-word@127.0.0.1:{free_port()}/none"
    found = run_checks(Outbox(Settings(database_url=url, dispatch="off")))
    by_check = {each.check: each for each in reversed(found)}
    assert by_check["database"].level == PROBLEM
    assert "OUTBOX_DATABASE_URL" in advice_of(by_check["database"])
    assert {"settings", "database", "redis", "brokers"} == set(by_check)
    assert "schema, inbox, locks, indexes" in next(each.what for each in found if "were skipped" in each.what)
    assert "hidden-word" not in repr(found)


def test_a_refused_password_is_a_problem_and_is_not_printed(postgres_url: str) -> None:
    url = postgres_url.replace("p%40ss", "wrong-word")
    found = run_checks(Outbox(Settings(database_url=url, dispatch="off")))
    assert next(each for each in found if each.check == "database").level == PROBLEM
    assert "wrong-word" not in repr(found)


def test_a_missing_file_is_a_problem_and_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    found = finding_of(Outbox(Settings(database_url=f"sqlite:///{path}", dispatch="off")), "database")
    assert (found.level, "outbox init" in advice_of(found)) == (PROBLEM, True)
    assert not path.exists()


@on_postgres
def test_a_postgres_that_is_too_old_is_a_problem(box: Outbox) -> None:
    assert finding_of(box, "database", oldest_postgres=(12,)).level == OK
    found = finding_of(box, "database", oldest_postgres=(99,))
    assert (found.level, "needs 99 or later" in found.what) == (PROBLEM, True)


def check_clock(box: Outbox, shift: timedelta) -> Finding:
    """Return what the doctor finds on a host whose clock is wrong by so much."""
    check = Check("clock", partial(database.clock, now=lambda: datetime.now(UTC) + shift))
    (found,) = run_checks(box, checks=[check])
    return found


@on_postgres
@pytest.mark.parametrize(("seconds", "word"), [(60, "behind"), (-60, "ahead of")])
def test_a_wrong_clock_is_a_warning_that_says_what_it_affects(box: Outbox, seconds: int, word: str) -> None:
    assert finding_of(box, "clock").level == OK
    found = check_clock(box, timedelta(seconds=seconds))
    assert found.level == WARNING
    assert f"s {word} this host's" in found.what
    assert "ids of events" in found.what
    assert check_clock(box, timedelta(seconds=seconds / 20)).level == OK


@on_postgres
def test_a_locked_table_does_not_block_the_doctor(box: Outbox, url: str) -> None:
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE")
        found = finding_of(box, "locks", statement_seconds=0.3)
        assert found.level == PROBLEM
        assert "has locked the table of events" in found.what
        assert f"pg_terminate_backend({other.info.backend_pid})" in advice_of(found)
    assert finding_of(box, "failed").level == OK
    with box.dialect.connection():
        assert box.dialect.run("SHOW statement_timeout").fetchone() == ("0",)


def test_a_database_that_goes_away_between_two_checks_is_a_finding_of_each() -> None:
    with PostgresServer() as server:
        box = Outbox(Settings(dispatch="off"), database=open_database(server.create_database("going")))
        box.create_tables()
        assert finding_of(box, "schema").level == OK
        server.stop()
        assert [(each.level, each.check) for each in findings_of(box, "schema")] == [(PROBLEM, "schema")]
        box.database.close_all()  # type: ignore[attr-defined]


def test_a_schema_with_a_space_in_its_name_is_fine(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier("our own")))
    url = f'{postgres_url}?options=-csearch_path%3D"our\\%20own"'
    box = Outbox(Settings(dispatch="off"), database=open_database(url))
    box.create_tables()
    assert [finding_of(box, each).level for each in ("schema", "inbox", "indexes", "vacuum")] == [OK] * 4
    box.database.close_all()  # type: ignore[attr-defined]
