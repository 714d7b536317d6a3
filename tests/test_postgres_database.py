"""Every test gets PostgreSQL's tables as if they had just been created, whatever the test before it did to them."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outbox.storage.connect import open_database
from tests.conftest import create_tables
from tests.support.postgres_database import PostgresDatabase
from tests.support.servers import Postgres
from tests.support.table import end_connections


class Renewed:
    """A database with the tables, and how often they were created."""

    def __init__(self, url: str) -> None:
        self.database = PostgresDatabase(url)
        self.created = 0

    def renew(self) -> None:
        self.database.renew(self._create)

    def _create(self) -> None:
        self.created += 1
        opened: Any = open_database(self.database.url)
        create_tables(opened)
        opened.close_all()

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database.url) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def database_of_module(postgres_server: Postgres) -> Iterator[Renewed]:
    made = Renewed(postgres_server.create_database("renewed"))
    yield made
    made.database.close()
    postgres_server.drop_database(made.database.url.rpartition("/")[2])


@pytest.fixture
def renewed(database_of_module: Renewed) -> Renewed:
    database_of_module.renew()
    database_of_module.created = 0
    return database_of_module


INSERT = """INSERT INTO outbox_audience (digest, names) VALUES ('x', '["a"]') RETURNING id"""


def test_rows_and_numbers_are_as_in_the_beginning_and_the_tables_are_not_created_again(renewed: Renewed) -> None:
    rows = "SELECT to_json(t)::text FROM outbox_control AS t UNION ALL SELECT to_json(t)::text FROM outbox_schema AS t"
    before = sorted(renewed.run(rows))
    ids = []
    for _ in range(3):
        ids.append(renewed.run(INSERT))
        renewed.run("UPDATE outbox_control SET version = 17")
        renewed.run("DELETE FROM outbox_schema")
        renewed.renew()
    assert ids == [[(1,)]] * 3
    assert renewed.run("SELECT * FROM outbox_audience") == []
    assert (sorted(renewed.run(rows)), renewed.created) == (before, 0)


def test_a_session_that_a_test_has_ended_is_replaced(renewed: Renewed) -> None:
    renewed.run(INSERT)
    end_connections(renewed.database.url)
    renewed.renew()
    assert (renewed.run("SELECT * FROM outbox_audience"), renewed.created) == ([], 0)


def test_a_number_that_was_only_drawn_is_drawn_again(renewed: Renewed) -> None:
    draw = "SELECT nextval(pg_get_serial_sequence('outbox_event', 'seq'))"
    assert renewed.run(draw) == [(1,)]
    renewed.renew()
    assert (renewed.run(draw), renewed.created) == ([(1,)], 0)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE outbox_event ADD COLUMN more text",
        "ALTER TABLE outbox_event DROP COLUMN audience",
        "ALTER TABLE outbox_event RENAME COLUMN audience TO public",
        "ALTER TABLE outbox_event ALTER COLUMN payload TYPE jsonb",
        "ALTER TABLE outbox_event ALTER COLUMN kind DROP DEFAULT",
        "ALTER TABLE outbox_event SET (fillfactor = 90)",
        "ALTER TABLE outbox_event ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE outbox_event RENAME TO away",
        "ALTER TABLE outbox_event RENAME CONSTRAINT unique_event_type_idempotency_key TO another",
        "DROP TABLE inbox",
        "DROP INDEX idx_outbox_pending_next",
        "CREATE INDEX more ON outbox_event (status)",
        "CREATE TABLE more (id integer)",
        "CREATE VIEW more AS SELECT 1",
        "CREATE SCHEMA more",
        "CREATE TYPE more AS ENUM ('a')",
        "CREATE FUNCTION more() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE POLICY more ON outbox_event",
        "CREATE RULE more AS ON INSERT TO inbox DO INSTEAD NOTHING",
        "GRANT SELECT ON outbox_event TO PUBLIC",
        "GRANT SELECT (id) ON outbox_event TO PUBLIC",
        "GRANT USAGE ON SCHEMA public TO PUBLIC",
        "CREATE TRIGGER more BEFORE UPDATE ON inbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_outbox_pending_next'::regclass",
        "ALTER SEQUENCE outbox_event_seq_seq INCREMENT BY 2",
    ],
)
def test_tables_whose_definitions_have_changed_are_created_again(renewed: Renewed, change: str) -> None:
    renewed.run(change)
    renewed.renew()
    renewed.renew()
    assert renewed.created == 1
